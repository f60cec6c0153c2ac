"""How a dataset is rendered by default: from the catalogue's `renders`; other bands, from their statistics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rio_tiler.colormap import cmap, parse_color
from rio_tiler.errors import RioTilerError

Range = tuple[float, float]
_UINT8 = "uint8"
_UINT8_RANGE = (0.0, 255.0)
_MAX_BANDS = 4
_MAX_COLORS = 4096
_MAX_CLASSES = 256
RESAMPLINGS = ("nearest", "bilinear", "cubic", "cubic_spline", "lanczos", "average", "mode")


@dataclass(frozen=True, slots=True)
class Rendering:
    """`ranges` has a range for each band of the dataset, for requests that select other bands than `bands`.

    `error` says what is wrong with the catalogue's `renders`; then nothing can be displayed, but values can be read.
    """

    bands: tuple[int, ...] = ()
    rescale: tuple[Range, ...] = ()
    colormap_name: str | None = None
    colormap: Any = None  # colours by value, or a list of intervals and colours, as rio-tiler accepts them
    resampling: str | None = None
    nodata: float | None = None
    ranges: tuple[Range | None, ...] = ()
    classes: tuple[tuple[int, str], ...] = ()  # values with their names, for legends
    error: str | None = None

    def rescale_for(self, bands: Sequence[int] | None) -> list[Range] | None:
        """The ranges of these bands, if each of them has one."""
        if not bands or tuple(bands) == self.bands:
            return list(self.rescale) or self._ranges_of(self.bands)
        return self._ranges_of(bands)

    def _ranges_of(self, bands: Iterable[int]) -> list[Range] | None:
        ranges = [self.ranges[b - 1] if 0 < b <= len(self.ranges) else None for b in bands]
        return [each for each in ranges if each] if ranges and all(ranges) else None


def rendering_of(metadata: Mapping[str, Any], asset: Mapping[str, Any], name: str = "default") -> Rendering:
    """The rendering from the `renders` of an item or collection, and the `bands` of the asset, else of the item assets.

    It uses the render called `name` if there is one, else the default.
    """
    bands = asset.get("bands") or _bands_of_item_assets(metadata)
    ranges = tuple(_range_of(band) for band in bands)
    classes = _classes_of(asset.get("classification:classes") or _item_asset(metadata).get("classification:classes"))
    try:
        renders = _mapping(metadata.get("renders") or {}, "renders")
        render = _mapping(renders.get(name) or renders.get("default") or next(iter(renders.values()), {}), "a render")
        rescale = _rescale(render.get("rescale"))
        if set(rescale) == {_UINT8_RANGE} and {band.get("data_type") for band in bands} == {_UINT8}:
            rescale = ()  # rescaling from 0–255 to 0–255 would change nothing and take time
        return Rendering(
            bands=_bands(render.get("bidx")),
            rescale=rescale,
            colormap_name=_one_of(render.get("colormap_name"), cmap.list(), "colormap_name"),
            colormap=_colormap(render.get("colormap")),
            resampling=_one_of(render.get("resampling"), RESAMPLINGS, "resampling"),
            nodata=_number(render.get("nodata")),
            ranges=ranges,
            classes=classes,
        )
    except ValueError as error:
        return Rendering(ranges=ranges, error=str(error))


def legend_of(rendering: Rendering, palette: Any) -> list[dict[str, Any]]:
    """The classes of a dataset with the colours in which they are drawn. Transparent classes and nodata are not listed.

    `palette` is that of the file. Without names in the catalogue, its entries are listed by value, up to the last
    colour.
    """
    colors = rendering.colormap or palette
    if not isinstance(colors, Mapping):
        return []
    named = dict(rendering.classes) or {value: str(value) for value in _used_values(colors)}
    return [
        {"value": value, "name": name, "color": "#{:02x}{:02x}{:02x}".format(*colors[value][:3])}
        for value, name in sorted(named.items())
        if value in colors and (len(colors[value]) < 4 or colors[value][3] > 0)
    ][:_MAX_CLASSES]


def _used_values(colors: Mapping[int, Sequence[int]]) -> list[int]:
    """TIFF palettes are padded with black."""
    last = max((value for value, color in colors.items() if any(color[:3])), default=-1)
    return [value for value in colors if value <= last]


def _classes_of(classes: Any) -> tuple[tuple[int, str], ...]:
    """The catalogue's classes, without nodata. Invalid entries are left out: a legend is not essential."""
    valid = [each for each in classes if isinstance(each, Mapping)] if isinstance(classes, list) else []
    return tuple(
        (each["value"], _class_name(each))
        for each in valid
        if type(each.get("value")) is int and not each.get("nodata")
    )


def _class_name(each: Mapping[str, Any]) -> str:
    """The title, else the description or the name. Names that were derived from the value are shown as the value."""
    texts = (each.get(field) for field in ("title", "description", "name"))
    text = next((text for text in texts if isinstance(text, str) and text), "")
    return str(each["value"]) if text in ("", f"class-{each['value']}") else text[:200]


def parse_colormap(colors: Any) -> Any:
    """Colours by value, or by interval, as in STAC's `renders` and TiTiler's `colormap`; ValueError if it is neither.

    >>> parse_colormap({"1": "#ff0000"})
    {1: (255, 0, 0, 255)}
    >>> parse_colormap([[[0, 10], [0, 0, 255]]])
    [((0.0, 10.0), (0, 0, 255, 255))]
    """
    try:
        if len(colors) > _MAX_COLORS:
            raise ValueError(f"colormap has more than {_MAX_COLORS} colours")
        if isinstance(colors, Mapping):
            return {int(value): _color(color) for value, color in colors.items()}
        return [((float(low), float(high)), _color(color)) for (low, high), color in colors]
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, RioTilerError) as error:
        if "colormap has" in str(error):
            raise
        raise ValueError("colormap must have colours by value, or a list of intervals and colours") from None


def _color(color: Any) -> tuple[int, int, int, int]:
    parts = tuple(int(part) for part in parse_color(color))
    if len(parts) != 4 or not all(0 <= part <= 255 for part in parts):
        raise ValueError
    return parts


def _colormap(colors: Any) -> Any:
    return parse_colormap(colors) if colors else None


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object")
    return value


def _rescale(pairs: Any) -> tuple[Range, ...]:
    try:
        ranges = tuple((float(low), float(high)) for low, high in pairs or ())
    except (TypeError, ValueError):
        ranges = ((0.0, 0.0),)
    if not all(low < high and math.isfinite(high - low) for low, high in ranges):
        raise ValueError("rescale must consist of pairs of numbers, the lower one first")
    return ranges


def _bands(numbers: Any) -> tuple[int, ...]:
    try:
        bands = tuple(int(band) for band in numbers or ())
    except (TypeError, ValueError):
        bands = (0,)
    if len(bands) > _MAX_BANDS or not all(band > 0 for band in bands):
        raise ValueError(f"bidx must have at most {_MAX_BANDS} bands, counted from 1")
    return bands


def _one_of(value: Any, allowed: Sequence[str], name: str) -> str | None:
    if value is not None and (not isinstance(value, str) or value not in allowed):
        raise ValueError(f"{name} has an unknown value")
    return value


def _item_asset(collection: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a collection says about the data of all its items."""
    return (collection.get("item_assets") or {}).get("data") or {}


def _bands_of_item_assets(collection: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(_item_asset(collection).get("bands") or collection.get("bands") or [])


def _range_of(band: Mapping[str, Any]) -> Range | None:
    """Minimum and maximum; None for bytes, which need no rescaling."""
    statistics = band.get("statistics") or {}
    low, high = _number(statistics.get("minimum")), _number(statistics.get("maximum"))
    if band.get("data_type") == _UINT8 or low is None or high is None or low >= high:
        return None
    return low, high


def _number(value: object) -> float | None:
    """STAC writes NaN as text, because JSON has no number for it."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if not math.isinf(number) else None
