"""Mosaics list every COG at its position, and cogeo-mosaic reads them in the same way."""

import json
import subprocess

import jsonschema
import morecantile
import numpy as np
import pytest
import rasterio
from affine import Affine
from cogeo_mosaic.backends import MosaicBackend
from cogeo_mosaic.backends.memory import MemoryBackend
from cogeo_mosaic.mosaic import MosaicJSON
from rasterio.warp import transform as transform_points
from rio_tiler.errors import NoAssetFoundError
from rio_tiler.io import Reader
from shapely.geometry import Polygon, box, shape

from dagmaster.errors import InvalidRequest
from dagmaster.raster.analysis import mosaic as module
from dagmaster.raster.analysis.mosaic import MosaicAsset, assets_at, encode, mosaic, mosaic_asset
from tests.raster.scenes import write

pytestmark = pytest.mark.requirement("R7")

WEB_MAP = morecantile.tms.get("WebMercatorQuad")

# From the text of the specification, version 0.0.3.
SCHEMA = {
    "type": "object",
    "required": ["mosaicjson", "minzoom", "maxzoom", "bounds", "tiles"],
    "properties": {
        "mosaicjson": {"const": "0.0.3"},
        "name": {"type": "string"},
        "description": {"type": "string"},
        "version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        "attribution": {"type": "string"},
        "minzoom": {"type": "integer", "minimum": 0, "maximum": 30},
        "maxzoom": {"type": "integer", "minimum": 0, "maximum": 30},
        "quadkey_zoom": {"type": "integer", "minimum": 0, "maximum": 30},
        "bounds": {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4},
        "center": {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3},
        "asset_type": {"const": "COG"},
        "asset_prefix": {"type": "string"},
        "data_type": {"enum": ["uint8", "uint16", "int16", "float32", "other"]},
        "colormap": {
            "type": "object",
            "patternProperties": {
                "^[0-9]+$": {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4}
            },
            "additionalProperties": False,
        },
        "tiles": {
            "type": "object",
            "patternProperties": {
                "^[0-3]{1,30}$": {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True}
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}


def grid(folder, *, crs, origin, pixel, tiles=3, size=200, overlap=20, turn=0.0):
    """Overlapping tiles of one grid; the pixels of each tile are its number."""
    whole = Affine.translation(*origin) @ Affine.rotation(turn) @ Affine.scale(pixel, -pixel)
    paths = []
    for row in range(tiles):
        for column in range(tiles):
            path = folder / f"r{row}c{column}.tif"
            data = np.full((size + overlap, size + overlap), row * tiles + column + 1, "uint8")
            paths.append(write(path, data, crs=crs, transform=whole @ Affine.translation(column * size, row * size)))
    return paths


GRIDS = {
    "degrees": {"crs": "EPSG:4326", "origin": (10, 50), "pixel": 0.0001},
    "projected": {"crs": "EPSG:32633", "origin": (400_000, 5_400_000), "pixel": 10},
    "turned": {"crs": "EPSG:32633", "origin": (400_000, 5_400_000), "pixel": 10, "turn": 25.0},
    "southern": {"crs": "EPSG:2193", "origin": (1_700_000, 5_400_000), "pixel": 15},
    "antimeridian": {"crs": "EPSG:32601", "origin": (240_000, 5_400_000), "pixel": 100},
    "coarse": {"crs": "EPSG:4326", "origin": (-20, 70), "pixel": 0.1},
}


@pytest.fixture(params=list(GRIDS))
def scene(request, tmp_path):
    paths = grid(tmp_path, **GRIDS[request.param])
    return paths, mosaic([mosaic_asset(path, name=path.name) for path in paths])


def tiles_containing(paths, lon, lat):
    """For each point, the names of the rasters whose grid contains it, by the affine transform alone."""
    tiles = [set() for _ in lon]
    for path in paths:
        with rasterio.open(path) as dataset:
            x, y = transform_points("EPSG:4326", dataset.crs, lon, lat)[:2]
            a, b, c, d, e, f = tuple(~dataset.transform)[:6]
            columns, rows = a * np.array(x) + b * np.array(y) + c, d * np.array(x) + e * np.array(y) + f
            inside = (columns > 0) & (columns < dataset.width) & (rows > 0) & (rows < dataset.height)
        for place in np.flatnonzero(inside):
            tiles[place].add(path.name)
    return tiles


def random_points(paths, number, *, seed=8):
    """Points in and slightly outside the mosaic, evenly distributed in the rasters' own CRS."""
    rng = np.random.default_rng(seed)
    with rasterio.open(paths[0]) as first, rasterio.open(paths[-1]) as last:
        width, height = last.bounds.right - first.bounds.left, first.bounds.top - last.bounds.bottom
        x = rng.uniform(first.bounds.left - 0.1 * width, last.bounds.right + 0.1 * width, number)
        y = rng.uniform(last.bounds.bottom - 0.1 * height, first.bounds.top + 0.1 * height, number)
        return transform_points(first.crs, "EPSG:4326", x, y)[:2]


def test_the_index_lists_every_tile_that_contains_a_point(scene):
    paths, document = scene
    lon, lat = random_points(paths, 1000)

    expected = tiles_containing(paths, lon, lat)

    missing = [
        (x, y) for x, y, names in zip(lon, lat, expected, strict=True) if not names <= set(assets_at(document, x, y))
    ]
    assert missing == []
    assert sum(map(bool, expected)) > 400


def test_cogeo_mosaic_finds_the_same_assets(scene):
    paths, document = scene
    lon, lat = random_points(paths, 1000)

    with MemoryBackend(mosaic_def=MosaicJSON(**document)) as theirs:
        for x, y in zip(lon, lat, strict=True):
            assert theirs.assets_for_point(x, y) == assets_at(document, x, y)


@pytest.mark.parametrize(
    ("kind", "number"),
    [("degrees", 200), ("projected", 200), pytest.param("degrees", 1000, marks=pytest.mark.slow)],
)
def test_a_point_is_read_from_exactly_the_tiles_that_contain_it(tmp_path, kind, number):
    """Read through cogeo-mosaic from the written file, and compared by pixel values."""
    paths = grid(tmp_path, **GRIDS[kind])
    document = mosaic([mosaic_asset(path, name=path.name) for path in paths])
    (tmp_path / "mosaic.json").write_bytes(encode({**document, "asset_prefix": f"{tmp_path}/"}))
    lon, lat = random_points(paths, number)
    expected = tiles_containing(paths, lon, lat)

    wrong = []
    with MosaicBackend(str(tmp_path / "mosaic.json")) as backend:
        for x, y, names in zip(lon, lat, expected, strict=True):
            try:
                tiles = {asset.rpartition("/")[2] for asset, _ in backend.point(x, y, threads=0)}
            except NoAssetFoundError:
                tiles = set()
            if tiles != names:
                wrong.append((x, y, tiles, names))

    assert wrong == []


def test_each_quadkey_lists_exactly_the_tiles_that_overlap_it(scene):
    paths, document = scene
    grounds = {path.name: shape(mosaic_asset(path, name=path.name).geometry) for path in paths}

    assert {name for names in document["tiles"].values() for name in names} == grounds.keys()
    for quadkey, names in document["tiles"].items():
        square = box(*WEB_MAP.bounds(WEB_MAP.quadkey_to_tile(quadkey)))
        overlapping = [name for name, ground in grounds.items() if ground.intersection(square).area > 1e-12]
        assert names == overlapping


def test_the_index_has_few_entries(scene):
    paths, document = scene

    entries = sum(map(len, document["tiles"].values()))

    assert entries <= 8 * len(paths)
    assert max(map(len, document["tiles"].values())) <= 9


def test_the_document_conforms_to_the_specification(scene):
    _, document = scene

    jsonschema.validate(document, SCHEMA)
    assert MosaicJSON(**document).model_dump(exclude_none=True)["tiles"] == document["tiles"]
    assert document["minzoom"] <= document["quadkey_zoom"] <= document["maxzoom"]


@pytest.mark.parametrize("kind", ["degrees", "projected", "southern"])
def test_the_zoom_levels_are_those_of_rio_tiler_for_the_whole_mosaic(tmp_path, kind):
    paths = grid(tmp_path, **GRIDS[kind])
    document = mosaic([mosaic_asset(path, name=path.name) for path in paths])
    subprocess.run(["gdalbuildvrt", "-q", tmp_path / "all.vrt", *paths], check=True)

    with Reader(str(tmp_path / "all.vrt")) as whole:
        assert (document["minzoom"], document["maxzoom"]) == (whole.minzoom, whole.maxzoom)
        bounds = whole.get_geographic_bounds("EPSG:4326")

    assert document["bounds"] == pytest.approx(bounds, abs=1e-4)


def test_maxzoom_is_that_of_the_finest_tile(tmp_path):
    """In a grid in degrees, tiles nearer to the equator have a finer resolution on the map."""
    paths = grid(tmp_path, **GRIDS["coarse"])
    document = mosaic([mosaic_asset(path, name=path.name) for path in paths])

    zooms = set()
    for path in paths:
        with Reader(str(path)) as tile:
            zooms.add(tile.maxzoom)

    assert len(zooms) > 1
    assert document["maxzoom"] == max(zooms)


@pytest.mark.parametrize(
    "resolution", [0.01, 0.3, 1, 9.5, 10, 30, 76.43702828517624, 100, 108, 109, 1000, 156543, 300_000]
)
def test_the_zoom_of_a_resolution_is_that_of_morecantile(resolution):
    assert module._zoom(resolution) == WEB_MAP.zoom_for_res(resolution)


def test_minzoom_is_raised_if_a_map_tile_would_need_too_many_cogs(tmp_path):
    assets = [mosaic_asset(path, name=path.name) for path in grid(tmp_path, **GRIDS["degrees"], tiles=7)]

    free, limited = mosaic(assets), mosaic(assets, assets_per_tile=16)

    assert limited["minzoom"] > free["minzoom"]
    with MemoryBackend(mosaic_def=MosaicJSON(**limited)) as backend:
        west, south, east, north = limited["bounds"]
        tiles = WEB_MAP.tiles(west, south, east, north, [limited["minzoom"]])
        assert max(len(backend.assets_for_tile(*tile)) for tile in tiles) <= 16


def test_a_mosaic_across_the_antimeridian_has_tiles_on_both_sides(tmp_path):
    document = mosaic([mosaic_asset(path, name=path.name) for path in grid(tmp_path, **GRIDS["antimeridian"])])

    assert {quadkey[0] for quadkey in document["tiles"]} == {"0", "1"}
    assert (document["bounds"][0], document["bounds"][2]) == (-180, 180)
    assert abs(document["center"][0]) > 179
    assert document["maxzoom"] == 10


def test_a_raster_that_reaches_a_pole_has_a_useful_maxzoom(tmp_path):
    """For such a raster rio-tiler falls back to zoom 0, at which no detail is visible."""
    path = write(tmp_path / "a.tif", np.ones((1800, 3600), "uint8"), transform=Affine(0.1, 0, -180, 0, -0.1, 90))

    document = mosaic([mosaic_asset(path, name=path.name)])

    assert (document["minzoom"], document["maxzoom"]) == (0, 4)
    assert document["bounds"] == [-180, -90, 180, 90]
    assert assets_at(document, 12, 89.5) == ["a.tif"]


def test_narrow_tiles_at_the_edge_do_not_enlarge_the_index(tmp_path):
    """cogeo-mosaic takes the zoom of the smallest raster, at which a large one covers a thousand squares."""
    large = write(
        tmp_path / "large.tif", np.ones((2000, 2000), "uint8"), transform=Affine(0.0001, 0, 10, 0, -0.0001, 50)
    )
    sliver = write(
        tmp_path / "sliver.tif", np.ones((2000, 5), "uint8"), transform=Affine(0.0001, 0, 10.2, 0, -0.0001, 50)
    )

    document = mosaic([mosaic_asset(path, name=path.name) for path in (large, sliver)])

    assert len(document["tiles"]) <= 16


def test_the_same_tiles_give_the_same_bytes(tmp_path):
    assets = [mosaic_asset(path, name=path.name) for path in grid(tmp_path, **GRIDS["projected"])]

    one, other = encode(mosaic(assets)), encode(mosaic(reversed(assets)))

    assert one == other
    assert list(json.loads(one)["tiles"]) == sorted(json.loads(one)["tiles"])


def test_an_asset_is_unchanged_after_json(tmp_path):
    [path] = grid(tmp_path, **GRIDS["degrees"], tiles=1)
    asset = mosaic_asset(path, name="a.tif")

    travelled = MosaicAsset(**json.loads(json.dumps({name: getattr(asset, name) for name in MosaicAsset.__slots__})))

    assert encode(mosaic([travelled])) == encode(mosaic([asset]))


def test_names_are_relative_and_the_prefix_is_public(tmp_path):
    [path] = grid(tmp_path, **GRIDS["degrees"], tiles=1)
    prefix = "https://data.example.org/cogs/roads/v1/r1/"

    document = mosaic(
        [mosaic_asset(path, name="a.tif")], asset_prefix=prefix, palette={1: (255, 0, 0, 255), 0: (0, 0, 0, 0)}
    )

    assert assets_at(document, 10.001, 49.999) == [f"{prefix}a.tif"]
    assert str(tmp_path) not in encode(document).decode()
    assert document["colormap"] == {"0": [0, 0, 0, 0], "1": [255, 0, 0, 255]}
    jsonschema.validate(document, SCHEMA)


@pytest.mark.parametrize(
    "name", ["/data/a.tif", "../a.tif", "/vsiaz/c/a.tif", "https://h/a.tif", "a.tif?sig=x", "c:\\a.tif", "", "a//b.tif"]
)
def test_internal_names_are_refused(tmp_path, name):
    [path] = grid(tmp_path, **GRIDS["degrees"], tiles=1)

    with pytest.raises(InvalidRequest):
        mosaic_asset(path, name=name)


@pytest.mark.parametrize(
    "prefix",
    [
        "/data/",
        "/vsiaz/c/",
        "file:///data/",
        "az://c/",
        "https://h/cogs",
        "https://u:p@h/",
        "https://h/?sig=x/",
        "s3://b/",
    ],
)
def test_internal_prefixes_are_refused(tmp_path, prefix):
    [path] = grid(tmp_path, **GRIDS["degrees"], tiles=1)

    with pytest.raises(InvalidRequest):
        mosaic([mosaic_asset(path, name="a.tif")], asset_prefix=prefix)


def test_an_empty_or_ambiguous_mosaic_is_refused():
    ground = {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 0]]]}
    asset = MosaicAsset("a.tif", ground, (0, 0, 1, 1), 10, "uint8")

    with pytest.raises(InvalidRequest, match="at least one"):
        mosaic([])
    with pytest.raises(InvalidRequest, match="same name"):
        mosaic([asset, asset])


def test_squares_that_an_outline_only_touches_are_left_out():
    """An L-shape whose inner edge runs along a square: its bounding box contains that square, the shape does not."""
    ground = Polygon([(0, 0), (22.5, 0), (22.5, 5), (11.25, 5), (11.25, 15), (0, 15)])
    asset = MosaicAsset("a.tif", ground.__geo_interface__, ground.bounds, 100, "float32")

    tiles = module._tiles_of(asset, 5)

    assert tiles == {(16, 15), (17, 15), (16, 14)}
    assert len(list(module._tiles_around(ground.bounds, 5))) == 4


def test_the_data_type_of_mixed_types_is_other(tmp_path):
    one = write(tmp_path / "a.tif", np.ones((50, 50), "uint8"))
    other = write(tmp_path / "b.tif", np.ones((50, 50), "float32"))

    document = mosaic([mosaic_asset(path, name=path.name) for path in (one, other)])

    assert document["data_type"] == "other"
