"""The rules of the STAC extensions that our documents use: projection 1.2, raster 2.0, eo 1.1, file 2.1, processing
1.2, version 1.2, timestamps 1.1, render 2.0, web-map-links 1.2, classification 1.1. They are stricter than the schemas
where numbers must agree.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from dagmaster.stac.bands import CRS_CODE
from dagmaster.stac.values import EXTENSIONS, is_multihash

Json: TypeAlias = Mapping[str, Any]
Violations: TypeAlias = Iterator[tuple[str, str]]  # where, message

_FIELDS = {
    "projection": ("proj:", {"code", "epsg", "wkt2", "projjson", "geometry", "bbox", "centroid", "shape", "transform"}),
    "eo": ("eo:", {"bands", "cloud_cover", "snow_cover"}),
    "raster": ("raster:", {"bits_per_sample", "sampling", "scale", "offset", "spatial_resolution", "histogram"}),
    "file": ("file:", {"byte_order", "checksum", "header_size", "size", "values", "local_path"}),
    "processing": ("processing:", {"expression", "lineage", "level", "facility", "version", "datetime", "software"}),
    "classification": ("classification:", {"classes", "bitfields"}),
}
# Versions that earlier releases declared. Their items are still registered: by jobs that were started before an
# upgrade, and from files.
_EARLIER_VERSIONS = {"projection": ("https://stac-extensions.github.io/projection/v2.0.0/schema.json",)}
_MAP_LINKS = {"xyz", "wms", "wmts", "tilejson", "pmtiles", "3d-tiles"}
_LIMITS = {
    "uint8": (0, 2**8 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
_RESAMPLINGS = {"nearest", "bilinear", "cubic", "cubic_spline", "lanczos", "average", "mode", "gauss", "rms"}
_CLASS_NAME = re.compile(r"[0-9A-Za-z_-]+")
_COLOUR = re.compile(r"[0-9A-Fa-f]{6}")


def _owners(document: Json) -> Iterator[tuple[str, Json]]:
    """Every object that can have fields of an extension, with its path in the document."""
    yield ("properties", document["properties"]) if document.get("type") == "Feature" else ("", document)
    for group in ("assets", "item_assets"):
        for key, asset in document.get(group, {}).items():
            yield f"{group}.{key}", asset
            yield from _bands(f"{group}.{key}", asset)


def _bands(where: str, asset: Json) -> Iterator[tuple[str, Json]]:
    for place, band in enumerate(asset.get("bands", [])):
        yield f"{where}.bands.{place}", band


def _every_band(document: Json) -> Iterator[tuple[str, Json]]:
    for group in ("assets", "item_assets"):
        for key, asset in document.get(group, {}).items():
            yield from _bands(f"{group}.{key}", asset)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any, minimum: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


# Which extensions


def _uses(document: Json) -> dict[str, bool]:
    owners = [owner for _, owner in _owners(document)]
    outermost = owners[0]
    fields = {name for owner in owners for name in owner} | set(document.get("summaries", {}))
    used = {name: any(field.startswith(prefix) for field in fields) for name, (prefix, _) in _FIELDS.items()}
    return used | {
        "version": "version" in outermost or "deprecated" in outermost,
        "timestamps": bool({"published", "unpublished", "expires"} & outermost.keys()),
        "render": "renders" in outermost,
        "web-map-links": any(link.get("rel") in _MAP_LINKS for link in document.get("links", [])),
    }


def _declared_extensions(document: Json) -> Violations:
    declared, recognised = set(document.get("stac_extensions", [])), set[str]()
    for name, is_used in _uses(document).items():
        accepted = {EXTENSIONS[name], *_EARLIER_VERSIONS.get(name, ())}
        recognised |= accepted
        if is_used and not declared & accepted:
            yield "stac_extensions", f"{name} is used and not declared as {EXTENSIONS[name]}"
        if not is_used and declared & accepted:
            yield "stac_extensions", f"{name} is declared and not used"
    for _ in declared - recognised:
        yield "stac_extensions", "an extension is declared that is not supported, or not in this version"


def _known_fields(document: Json) -> Violations:
    """Refuse fields that the extensions do not have, such as those of older versions."""
    for where, owner in _owners(document):
        for name, (prefix, known) in _FIELDS.items():
            for field in owner:
                if field.startswith(prefix) and field.removeprefix(prefix) not in known:
                    yield f"{where}.{field}".strip("."), f"{name} has no such field"
    if "renders" in document and document.get("type") == "Feature":
        yield "renders", "in an item, renders must be in its properties"


# Projection


def _projection(document: Json) -> Violations:
    for where, owner in _owners(document):
        code, shape, transform, bbox = (owner.get(f"proj:{name}") for name in ("code", "shape", "transform", "bbox"))
        if code is not None and not (isinstance(code, str) and CRS_CODE.fullmatch(code)):
            yield f"{where}.proj:code", "it is not an authority and a code, such as EPSG:4326"
        if "proj:epsg" in owner and code != f"EPSG:{owner['proj:epsg']}":
            yield f"{where}.proj:epsg", "it is not the number in `proj:code`"
        if shape is not None and not (len(shape) == 2 and all(is_whole(side, 1) for side in shape)):
            yield f"{where}.proj:shape", "it must be the number of rows and the number of columns"
        elif transform is not None and not (len(transform) in (6, 9) and all(map(_is_number, transform))):
            yield f"{where}.proj:transform", "it must have six or nine numbers"
        elif bbox is not None and not (
            len(bbox) == 4 and all(map(_is_number, bbox)) and bbox[0] < bbox[2] and bbox[1] < bbox[3]
        ):
            yield f"{where}.proj:bbox", "it must have four numbers: west, south, east, north"
        elif shape and transform and bbox:
            yield from _grid_agrees(where, shape, transform, bbox)
    yield from _assets_have_a_grid(document)


def _grid_agrees(where: str, shape: list[int], transform: list[float], bbox: list[float]) -> Violations:
    a, b, c, d, e, f = transform[:6]
    rows, columns = shape
    corners = [(a * x + b * y + c, d * x + e * y + f) for x in (0, columns) for y in (0, rows)]
    xs, ys = [corner[0] for corner in corners], [corner[1] for corner in corners]
    tolerance = 1e-6 * max(abs(edge) for edge in bbox) + 1e-9
    if any(abs(one - other) > tolerance for one, other in zip(bbox, (min(xs), min(ys), max(xs), max(ys)), strict=True)):
        yield f"{where}.proj:bbox", "it does not agree with `proj:shape` and `proj:transform`"
    if len(transform) == 9 and list(transform[6:]) != [0, 0, 1]:
        yield f"{where}.proj:transform", "its last row must be 0, 0, 1"


def _assets_have_a_grid(document: Json) -> Violations:
    for key, asset in document.get("assets", {}).items():
        if "data" in asset.get("roles", []):
            missing = [name for name in ("proj:shape", "proj:transform") if name not in asset]
            if "proj:code" not in asset and "proj:wkt2" not in asset:
                missing.append("proj:code")
            if missing:
                yield f"assets.{key}", f"a raster needs {', '.join(missing)}"


# Bands, statistics, histograms


def _bands_described(document: Json) -> Violations:
    for key, asset in document.get("assets", {}).items():
        if "data" in asset.get("roles", []) and not asset.get("bands"):
            yield f"assets.{key}.bands", "a raster must have at least one band"
    for where, band in _every_band(document):
        if not band.get("name") or "data_type" not in band:
            yield where, "a band needs a name and a data type"
        if band.get("raster:sampling", "area") not in ("area", "point"):
            yield f"{where}.raster:sampling", "it must be area or point"
        for name in ("raster:scale", "raster:offset", "raster:spatial_resolution"):
            if name in band and not _is_number(band[name]):
                yield f"{where}.{name}", "it must be a number"
        if band.get("raster:scale") == 0 or band.get("raster:spatial_resolution", 1) <= 0:
            yield where, "scale must not be zero, and the resolution must be positive"
        if "raster:bits_per_sample" in band and not is_whole(band["raster:bits_per_sample"], 1):
            yield f"{where}.raster:bits_per_sample", "it must be a whole number"


def _nodata(document: Json) -> Violations:
    for where, band in _every_band(document):
        nodata = band.get("nodata")
        if nodata is None:
            continue
        if nodata in ("nan", "inf", "-inf"):
            if band.get("data_type") in _LIMITS:
                yield f"{where}.nodata", "an integer type has no such value"
        elif not _is_number(nodata):
            yield f"{where}.nodata", "it must be a number, or one of nan, inf, -inf"
        elif (
            band.get("data_type") in _LIMITS
            and not _LIMITS[band["data_type"]][0] <= nodata <= _LIMITS[band["data_type"]][1]
        ):
            yield f"{where}.nodata", f"{band['data_type']} cannot hold it"


def _statistics(document: Json) -> Violations:
    for where, band in _every_band(document):
        if (statistics := band.get("statistics")) is not None:
            yield from ((f"{where}.statistics", message) for message in _statistics_problems(statistics, band))
        if (histogram := band.get("raster:histogram")) is not None:
            messages = _histogram_problems(histogram, statistics)
            yield from ((f"{where}.raster:histogram", message) for message in messages)


def _statistics_problems(statistics: Json, band: Json) -> Iterator[str]:
    low, high, mean, deviation = (statistics.get(name) for name in ("minimum", "maximum", "mean", "stddev"))
    if not (_is_number(low) and _is_number(high) and _is_number(mean) and _is_number(deviation)):
        yield "minimum, maximum, mean and stddev must be numbers"
        return
    assert low is not None
    assert high is not None
    assert mean is not None
    assert deviation is not None
    tolerance = 1e-6 * max(abs(low), abs(high), 1e-6)
    if not low - tolerance <= mean <= high + tolerance:
        yield "the mean is not between minimum and maximum"
    if not 0 <= deviation <= (high - low) / 2 + tolerance:
        yield "the standard deviation cannot be more than half the range"
    if band.get("nodata") in (low, high):
        yield "minimum or maximum is the nodata value: nodata was counted as data"
    limits = _LIMITS.get(str(band.get("data_type")))
    if limits and not limits[0] <= low <= high <= limits[1]:
        yield f"{band['data_type']} cannot hold minimum and maximum"
    if not 0 <= statistics.get("valid_percent", 0) <= 100:
        yield "valid_percent must be between 0 and 100"
    if not is_whole(statistics.get("count", 0)):
        yield "count must be a whole number"


def _histogram_problems(histogram: Json, statistics: Json | None) -> Iterator[str]:
    buckets, low, high = (histogram.get(name) for name in ("buckets", "min", "max"))
    if not isinstance(buckets, list) or len(buckets) < 3 or not all(is_whole(bucket) for bucket in buckets):
        yield "it must have at least three buckets, all whole numbers"
        return
    if histogram.get("count") != len(buckets):
        yield "count must be the number of buckets"
    if not (_is_number(low) and _is_number(high)) or low is None or high is None or low >= high:
        yield "min and max must be numbers, and min the smaller one"
    elif statistics and not low <= statistics.get("minimum", low) <= statistics.get("maximum", high) <= high:
        yield "it does not reach from minimum to maximum"
    if statistics and sum(buckets) != statistics.get("count", sum(buckets)):
        yield "its buckets do not add up to the count of the statistics"


# Files


def _files(document: Json) -> Violations:
    for key, asset in document.get("assets", {}).items():
        where = f"assets.{key}"
        checksum, size, header = (asset.get(f"file:{name}") for name in ("checksum", "size", "header_size"))
        if "data" in asset.get("roles", []) and (checksum is None or size is None):
            yield where, "a file needs its size and checksum"
        if checksum is not None and not is_multihash(checksum):
            yield f"{where}.file:checksum", "it is not a multihash of a SHA-256 (1220 and 64 hexadecimal digits)"
        if size is not None and not is_whole(size):
            yield f"{where}.file:size", "it must be a number of bytes"
        if header is not None and not (is_whole(header) and (not is_whole(size) or header <= size)):
            yield f"{where}.file:header_size", "it must be a number of bytes, not more than the file has"


# Renders and map links


def _renders(document: Json) -> Violations:
    is_item = document.get("type") == "Feature"
    owner, where = (document["properties"], "properties.renders") if is_item else (document, "renders")
    renders = owner.get("renders")
    if not isinstance(renders, Mapping) or "default" not in renders:
        yield where, "there must be a render named default"
        return
    own = document.get("assets", {})
    assets = own if is_item else document.get("item_assets", {})
    for name, render in renders.items():
        # In a collection, the default render is for its items; others may be for its own assets, such as old mosaics.
        available = assets if name == "default" else {**own, **assets}
        yield from ((f"{where}.{name}", message) for message in _render_problems(render, available))


def _render_problems(render: Json, assets: Json) -> Iterator[str]:
    named = render.get("assets")
    if not isinstance(named, list) or not named or not set(named) <= set(assets):
        yield "it must name assets that exist"
        return
    if not {"rescale", "colormap", "colormap_name", "expression", "color_formula"} & render.keys():
        yield "it needs a rescale or a colormap: map servers do not derive one from statistics"
    band_count = len(assets[named[0]].get("bands", [])) or math.inf
    bands = render.get("bidx", [])
    if not isinstance(bands, list) or not all(is_whole(band, 1) and band <= band_count for band in bands):
        yield "bidx must list bands of the asset, counted from 1"
    yield from _rescale_problems(render.get("rescale"), len(bands) if isinstance(bands, list) else 0)
    if "nodata" in render and not (_is_number(render["nodata"]) or render["nodata"] in ("nan", "inf", "-inf")):
        yield "nodata must be a number, or one of nan, inf, -inf"
    if render.get("resampling", "nearest") not in _RESAMPLINGS:
        yield "resampling must be one of " + ", ".join(sorted(_RESAMPLINGS))
    if not isinstance(render.get("colormap_name", ""), str) or not isinstance(render.get("colormap", {}), Mapping):
        yield "colormap_name must be a string, colormap an object"


def _rescale_problems(rescale: Any, shown: int) -> Iterator[str]:
    if rescale is None:
        return
    is_pairs = (
        isinstance(rescale, list) and rescale and all(isinstance(pair, list) and len(pair) == 2 for pair in rescale)
    )
    if not is_pairs or not all(_is_number(low) and _is_number(high) and low < high for low, high in rescale):
        yield "rescale must be a list of pairs, the lower number first"
    elif len(rescale) not in (1, shown or 1):
        yield "rescale must have one pair for all bands shown, or one for each"


def _map_links(document: Json) -> Violations:
    renders = (document["properties"] if document.get("type") == "Feature" else document).get("renders") or {}
    links = [
        (f"links.{place}", link)
        for place, link in enumerate(document.get("links", []))
        if link.get("rel") in _MAP_LINKS
    ]
    for where, link in links:
        href = str(link.get("href"))
        if link["rel"] == "xyz" and not all(f"{{{axis}}}" in href for axis in "xyz"):
            yield where, "its URL must contain {z}, {x} and {y}"
        if ("{s}" in href) != ("href:servers" in link):
            yield where, "`href:servers` is required if the URL has {s}, and not allowed otherwise"
        if not link.get("type"):
            yield where, "it has no media type"
        if "render" in link and link["render"] not in renders:
            yield where, "it names a render that does not exist"
    if links and renders and not any("render" in link for _, link in links):
        yield "links", "no link to a map names the render that it shows"


# Version, processing, classes


def _version(document: Json) -> Violations:
    is_item = document.get("type") == "Feature"
    owner, where = (document["properties"], "properties") if is_item else (document, "")
    if not isinstance(owner.get("version"), str) or not owner.get("version"):
        yield f"{where}.version".strip("."), "it must be a string"
    for name in ("deprecated", "experimental"):
        if not isinstance(owner.get(name, False), bool):
            yield f"{where}.{name}".strip("."), "it must be true or false"


def _processing(document: Json) -> Violations:
    if document.get("type") != "Feature":
        return
    properties = document["properties"]
    for name in ("lineage", "facility", "version", "level"):
        value = properties.get(f"processing:{name}")
        if value is not None and not (isinstance(value, str) and value.strip()):
            yield f"properties.processing:{name}", "it must be a string"
    software = properties.get("processing:software")
    if software is not None and not (
        isinstance(software, Mapping)
        and software
        and all(key and isinstance(value, str) for key, value in software.items())
    ):
        yield "properties.processing:software", "it must have a version, as a string, for each name"
    if "processing:lineage" not in properties:
        yield "properties.processing:lineage", "it is missing"


def _classes(document: Json) -> Violations:
    for where, owner in _owners(document):
        class_list = owner.get("classification:classes")
        if class_list is None:
            continue
        if not isinstance(class_list, list) or not class_list:
            yield f"{where}.classification:classes", "it must list at least one class"
            continue
        values = [one.get("value") for one in class_list]
        if len(set(values)) < len(values) or not all(
            isinstance(value, int) and not isinstance(value, bool) for value in values
        ):
            yield f"{where}.classification:classes", "each class must have its own whole number as value"
        for one in class_list:
            if not _CLASS_NAME.fullmatch(str(one.get("name", ""))):
                yield f"{where}.classification:classes", "a name may have letters, digits, dashes and underscores only"
            if "color_hint" in one and not _COLOUR.fullmatch(str(one["color_hint"])):
                yield f"{where}.classification:classes", "a colour hint must have six hexadecimal digits and no #"


Rule: TypeAlias = Callable[[Json], Violations]
EXTENSION_RULES: tuple[Rule, ...] = (
    _declared_extensions,
    _known_fields,
    _projection,
    _bands_described,
    _nodata,
    _statistics,
    _files,
    _renders,
    _map_links,
    _version,
    _processing,
    _classes,
)
