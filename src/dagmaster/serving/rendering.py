"""How a dataset looks where nobody says otherwise: from the catalogue's `renders`, else from its bands' statistics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Range = tuple[float, float]
_BYTES = "uint8"
_ALL_BYTES = (0.0, 255.0)


@dataclass(frozen=True, slots=True)
class Rendering:
    """`ranges` are those of all bands, for whoever chooses other bands than `bands`."""

    bands: tuple[int, ...] = ()
    rescale: tuple[Range, ...] = ()
    colormap_name: str | None = None
    colormap: Mapping[str, Any] | None = None
    resampling: str | None = None
    nodata: float | None = None
    ranges: tuple[Range | None, ...] = ()

    def rescale_for(self, bands: Sequence[int] | None) -> list[Range] | None:
        """What these bands are stretched from, if anything is known of each of them."""
        if not bands or tuple(bands) == self.bands:
            return list(self.rescale) or self._ranges_of(self.bands)
        return self._ranges_of(bands)

    def _ranges_of(self, bands: Iterable[int]) -> list[Range] | None:
        known = [self.ranges[b - 1] if 0 < b <= len(self.ranges) else None for b in bands]
        return [found for found in known if found] if known and all(known) else None


def rendering_of(holder: Mapping[str, Any], asset: Mapping[str, Any], name: str = "default") -> Rendering:
    """From the `renders` of an item's properties or of a collection, and the `bands` of the asset itself or of its tiles.

    `name` is that of the render, where there is one of that name.
    """
    renders = holder.get("renders") or {}
    render = renders.get(name) or _default_of(renders)
    described = asset.get("bands") or _bands_of_tiles(holder)
    rescale = tuple((float(low), float(high)) for low, high in render.get("rescale") or ())
    if set(rescale) == {_ALL_BYTES} and {band.get("data_type") for band in described} == {_BYTES}:
        rescale = ()  # as they are: stretching them from 0–255 to 0–255 would only take time
    return Rendering(
        bands=tuple(int(band) for band in render.get("bidx") or ()),
        rescale=rescale,
        colormap_name=render.get("colormap_name"),
        colormap=render.get("colormap"),
        resampling=render.get("resampling"),
        nodata=_number(render.get("nodata")),
        ranges=tuple(_range_of(band) for band in described),
    )


def _default_of(renders: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = renders.get("default") or next(iter(renders.values()), {})
    return found


def _bands_of_tiles(collection: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a collection says of the data of all its items."""
    bands = ((collection.get("item_assets") or {}).get("data") or {}).get("bands") or collection.get("bands") or []
    return list(bands)


def _range_of(band: Mapping[str, Any]) -> Range | None:
    """From the darkest to the brightest. Bytes are shown as they are."""
    statistics = band.get("statistics") or {}
    low, high = _number(statistics.get("minimum")), _number(statistics.get("maximum"))
    if band.get("data_type") == _BYTES or low is None or high is None or low >= high:
        return None
    return low, high


def _number(value: object) -> float | None:
    """JSON has no NaN: STAC writes it as text."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if not math.isinf(number) else None
