"""A collection and items like those of NAIP: four assets, four bands with statistics, most fields shared."""

from typing import Any

COLORS = ("red", "green", "blue", "nir")
COG = "image/tiff; application=geotiff; profile=cloud-optimized"


def naip_collection(name: str = "naip") -> dict[str, Any]:
    return {
        "type": "Collection",
        "stac_version": "1.1.0",
        "id": name,
        "title": "Aerial imagery",
        "description": "Like NAIP: four bands, one metre",
        "license": "PDDL-1.0",
        "links": [],
        "extent": {
            "spatial": {"bbox": [[-125, 25, -66, 50]]},
            "temporal": {"interval": [["2020-01-01T00:00:00Z", "2023-12-31T00:00:00Z"]]},
        },
        "item_assets": {
            "data": {
                "type": COG,
                "title": "RGBIR COG tile",
                "roles": ["data"],
                "bands": [
                    {
                        "name": color,
                        "description": f"The {color} band of the camera",
                        "eo:common_name": color,
                        "eo:center_wavelength": 0.4 + number / 10,
                        "eo:full_width_half_max": 0.05,
                        "data_type": "uint8",
                        "nodata": 0,
                        "unit": "digital number",
                        "raster:sampling": "area",
                        "raster:bits_per_sample": 8,
                        "raster:spatial_resolution": 1.0,
                        "raster:scale": 1.0,
                        "raster:offset": 0.0,
                    }
                    for number, color in enumerate(COLORS)
                ],
            },
            "metadata": {"type": "text/plain", "title": "FGDC Metdata", "roles": ["metadata"]},
            "thumbnail": {"type": "image/jpeg", "title": "Thumbnail", "roles": ["thumbnail"]},
            "rendered_preview": {"type": "image/png", "title": "Preview", "roles": ["overview"], "rel": "preview"},
        },
    }


def naip_item(number: int, collection: str = "naip", base: str = "http://localhost:8003") -> dict[str, Any]:
    """One tile of a row of tiles."""
    west, south = round(-124 + number % 200 / 4, 6), round(26 + number // 200 / 4, 6)
    east, north = west + 0.0625, south + 0.0625
    west_m, north_m = 500_000 + 6_000 * (number % 200), 4_900_000 + 7_000 * (number // 200)
    name = f"co_m_{number:07d}_nw_13_060_20200909"
    files = f"{base}/files/silver/silver/cogs/{collection}/v0/r1/{name}"
    shared = naip_collection(collection)["item_assets"]
    bands = [
        {
            **band,
            "statistics": {
                "minimum": number % 7,
                "maximum": 255 - number % 5,
                "mean": 100 + number % 50 + place / 3,
                "stddev": 30 + number % 11 / 7,
                "count": 66_000_000 + number,
                "valid_percent": 99.5,
            },
        }
        for place, band in enumerate(shared["data"]["bands"])
    ]
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": [
            "https://stac-extensions.github.io/eo/v2.0.0/schema.json",
            "https://stac-extensions.github.io/projection/v2.0.0/schema.json",
            "https://stac-extensions.github.io/raster/v2.0.0/schema.json",
            "https://stac-extensions.github.io/file/v2.1.0/schema.json",
        ],
        "collection": collection,
        "id": name,
        "bbox": [west, south, east, north],
        "geometry": {
            "type": "Polygon",
            "coordinates": [[[west, south], [east, south], [east, north], [west, north], [west, south]]],
        },
        "properties": {
            "datetime": f"2020-09-{1 + number % 28:02d}T16:00:00Z",
            "created": "2024-01-01T00:00:00Z",
            "updated": "2024-01-01T00:00:00Z",
            "gsd": 0.6,
            "platform": "aircraft",
            "instruments": ["camera"],
            "constellation": "naip",
            "title": f"Tile {number}",
            "naip:year": "2020",
            "naip:state": "co",
            "eo:cloud_cover": number % 10,
            "proj:code": "EPSG:26913",
            "proj:shape": [12_240, 9_950],
            "proj:bbox": [west_m, north_m - 7_344, west_m + 5_970, north_m],
            "proj:transform": [0.6, 0.0, west_m, 0.0, -0.6, north_m, 0.0, 0.0, 1.0],
            "proj:centroid": {"lat": south + 0.03, "lon": west + 0.03},
            "dagmaster:version_ordinal": 0,
            "dagmaster:revision": 1,
        },
        "assets": {
            "data": {
                **shared["data"],
                "href": f"{files}.tif",
                "bands": bands,
                "file:size": 400_000_000 + number,
                "file:checksum": f"1220{number:064x}",
            },
            "metadata": {**shared["metadata"], "href": f"{files}.txt"},
            "thumbnail": {**shared["thumbnail"], "href": f"{files}.200.jpg"},
            "rendered_preview": {**shared["rendered_preview"], "href": f"{base}/tiles/{collection}/preview.png"},
        },
        "links": [
            {"rel": "tilejson", "href": f"{base}/tiles/{collection}/WebMercatorQuad/tilejson.json?item={name}"},
            {"rel": "via", "href": f"https://example.com/metadata/{name}", "title": "Source"},
        ],
    }
