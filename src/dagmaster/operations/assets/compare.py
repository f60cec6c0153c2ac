"""Compare two revisions by their STAC documents. Everything here is pure.

Documents may be of an earlier release, or damaged: a fact that cannot be read is left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dagmaster.client.models.asset_pages import Difference, RevisionFacts
from dagmaster.client.models.assets import VersionInfo
from dagmaster.database.assets.reads import Documents

Json = Mapping[str, Any]
_STATISTICS = ("minimum", "maximum", "mean", "stddev", "valid_percent", "count")
_BAND_FIELDS = ("name", "description", "data_type", "nodata", "unit")
_FIELDS = (
    "title",
    "license",
    "bbox",
    "interval",
    "crs",
    "width",
    "height",
    "resolution_metres",
    "item_count",
    "size_bytes",
    "source_checksum",
)


def facts_of(version: VersionInfo, revision: int, documents: Documents) -> RevisionFacts:
    """What the documents of a revision say about its data."""
    collection, item = documents.collection or {}, documents.item or {}
    data = _at(item, "assets", "data") if documents.item_count == 1 else None
    shape = _at(data, "proj:shape")
    is_shape = isinstance(shape, list) and len(shape) == 2 and all(isinstance(size, int) for size in shape)
    return RevisionFacts(
        version_ordinal=version.version_ordinal,
        version_label=version.version_label,
        revision=revision,
        title=_text(_at(collection, "title")),
        license=_text(_at(collection, "license")),
        bbox=_numbers(_at(collection, "extent", "spatial", "bbox", 0), 4) or _numbers(_at(item, "bbox"), 4),
        interval=_interval(_at(collection, "extent", "temporal", "interval", 0)),
        crs=_crs(item),
        width=shape[1] if is_shape else None,
        height=shape[0] if is_shape else None,
        resolution_metres=_number(_at(item, "properties", "gsd")),
        item_count=documents.item_count,
        size_bytes=documents.size_bytes,
        source_checksum=_text(_at(collection, "dagmaster:source_checksum")),
        bands=[_band(band) for band in _bands(collection, item) if isinstance(band, Mapping)],
    )


def differences(before: RevisionFacts, after: RevisionFacts) -> list[Difference]:
    """Every field that differs, in a fixed order."""
    return [_difference(name, first, second) for name, first, second in _pairs(before, after) if first != second]


def _pairs(before: RevisionFacts, after: RevisionFacts) -> Iterator[tuple[str, Any, Any]]:
    """Each field with both values."""
    for name in _FIELDS:
        yield name, getattr(before, name), getattr(after, name)
    yield "band_count", len(before.bands), len(after.bands)
    for index in range(max(len(before.bands), len(after.bands))):
        yield from _band_pairs(f"bands.{index + 1}", _nth(before.bands, index), _nth(after.bands, index))


def _band_pairs(band: str, before: Json, after: Json) -> Iterator[tuple[str, Any, Any]]:
    for name in _BAND_FIELDS:
        yield f"{band}.{name}", before.get(name), after.get(name)
    for name in _STATISTICS:
        yield f"{band}.statistics.{name}", _at(before, "statistics", name), _at(after, "statistics", name)


def _difference(name: str, before: Any, after: Any) -> Difference:
    first, second = _number(before), _number(after)
    delta = None if first is None or second is None else second - first
    return Difference(field=name, before=before, after=after, delta=delta)


def _nth(bands: Sequence[Json], index: int) -> Json:
    return bands[index] if index < len(bands) else {}


def _bands(collection: Json, item: Json) -> Sequence[Any]:
    """The bands of the whole dataset, if it has tiles; otherwise those of its file."""
    for bands in (_at(collection, "assets", "mosaic", "bands"), _at(item, "assets", "data", "bands")):
        if isinstance(bands, list) and bands:
            return bands
    return []


def _band(band: Json) -> dict[str, Any]:
    fields = {name: band.get(name) for name in _BAND_FIELDS}
    statistics = {name: value for name in _STATISTICS if (value := _at(band, "statistics", name)) is not None}
    return {**fields, "statistics": statistics or None}


def _crs(item: Json) -> str | None:
    for place in (_at(item, "properties"), _at(item, "assets", "data")):
        for name in ("proj:code", "proj:wkt2"):
            if text := _text(_at(place, name)):
                return text
    return None


def _interval(value: Any) -> list[str | None] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    return [_text(end) for end in value]


def _at(value: Any, *path: str | int) -> Any:
    for step in path:
        if isinstance(value, Mapping) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _numbers(value: Any, count: int) -> list[float] | None:
    if not isinstance(value, list) or len(value) != count or any(_number(each) is None for each in value):
        return None
    return [float(each) for each in value]
