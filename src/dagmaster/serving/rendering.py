"""How a dataset is rendered by default: from the catalogue's `renders`, else from the statistics of its bands."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Range = tuple[float, float]
_UINT8 = "uint8"
_UINT8_RANGE = (0.0, 255.0)


@dataclass(frozen=True, slots=True)
class Rendering:
    """`ranges` has a range for each band of the dataset, for requests that select other bands than `bands`."""

    bands: tuple[int, ...] = ()
    rescale: tuple[Range, ...] = ()
    colormap_name: str | None = None
    colormap: Mapping[str, Any] | None = None
    resampling: str | None = None
    nodata: float | None = None
    ranges: tuple[Range | None, ...] = ()

    def rescale_for(self, bands: Sequence[int] | None) -> list[Range] | None:
        """The ranges of these bands, if each of them has one."""
        if not bands or tuple(bands) == self.bands:
            return list(self.rescale) or self._ranges_of(self.bands)
        return self._ranges_of(bands)

    def _ranges_of(self, bands: Iterable[int]) -> list[Range] | None:
        ranges = [self.ranges[b - 1] if 0 < b <= len(self.ranges) else None for b in bands]
        return [known for known in ranges if known] if ranges and all(ranges) else None


def rendering_of(metadata: Mapping[str, Any], asset: Mapping[str, Any], name: str = "default") -> Rendering:
    """From the `renders` of an item or collection, and the `bands` of the asset, else of the item assets.

    Uses the render called `name` if there is one, else the default.
    """
    renders = metadata.get("renders") or {}
    render: Mapping[str, Any] = renders.get(name) or renders.get("default") or next(iter(renders.values()), {})
    bands = asset.get("bands") or _bands_of_item_assets(metadata)
    rescale = tuple((float(low), float(high)) for low, high in render.get("rescale") or ())
    if set(rescale) == {_UINT8_RANGE} and {band.get("data_type") for band in bands} == {_UINT8}:
        rescale = ()  # rescaling from 0–255 to 0–255 would change nothing and take time
    return Rendering(
        bands=tuple(int(band) for band in render.get("bidx") or ()),
        rescale=rescale,
        colormap_name=render.get("colormap_name"),
        colormap=render.get("colormap"),
        resampling=render.get("resampling"),
        nodata=_number(render.get("nodata")),
        ranges=tuple(_range_of(band) for band in bands),
    )


def _bands_of_item_assets(collection: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a collection says about the data of all its items."""
    bands = ((collection.get("item_assets") or {}).get("data") or {}).get("bands") or collection.get("bands") or []
    return list(bands)


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
