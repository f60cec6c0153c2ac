"""Coordinate reference systems: parsing and naming them, and their properties."""

import functools
import json
import re
from dataclasses import dataclass
from typing import Any

from rasterio._err import CPLE_BaseError
from rasterio.crs import CRS
from rasterio.errors import CRSError

from dagmaster.bbox import BBox
from dagmaster.errors import InvalidRequest
from dagmaster.quantities import shortened

_CODE = re.compile(r"(EPSG|ESRI|OGC|IAU_2015):[0-9A-Za-z]{1,12}", re.IGNORECASE)
_WKT = re.compile(r"[A-Z][A-Za-z_0-9]{3,20}\s*\[", re.ASCII)
_MAX_WKT_LENGTH = 20_000
# All ellipsoids and spheres used for the Earth; the closest other body is Venus with 6,051,800 m.
_EARTH_RADIUS_METRES = (6_350_000.0, 6_400_000.0)


@dataclass(frozen=True, slots=True)
class CrsFacts:
    """Properties of a CRS."""

    name: str
    is_geographic: bool
    is_local: bool  # an engineering CRS: its place on Earth is not known
    radius_metres: float | None
    unit: str | None  # of its horizontal axes
    metres_per_unit: float | None
    area_of_use: BBox | None

    @property
    def is_earth(self) -> bool:
        low, high = _EARTH_RADIUS_METRES
        return self.radius_metres is None or low <= self.radius_metres <= high


def parse_crs(text: str) -> CRS:
    """Parse an authority's code or WKT. Other texts are refused, because GDAL would also read a file or a URL."""
    if not (_CODE.fullmatch(text) or (len(text) <= _MAX_WKT_LENGTH and _WKT.match(text))):
        raise _unknown(text)
    try:
        return CRS.from_string(text) if _CODE.fullmatch(text) else CRS.from_wkt(text)
    except (CRSError, CPLE_BaseError, ValueError):
        raise _unknown(text) from None


def name_crs(crs: CRS) -> str:
    """`EPSG:32633` if the code means this CRS, else its WKT."""
    # At 70, rasterio's default, GDAL also matches a CRS without a datum, or with its own datum parameters.
    authority = crs.to_authority(confidence_threshold=90)
    return ":".join(authority) if authority else str(crs.to_wkt())


def split_crs(crs: CRS) -> tuple[CRS, str | None]:
    """The horizontal part, and the name of the vertical one if there is any."""
    tree = _tree(crs)
    if tree.get("type") != "CompoundCRS":
        return crs, None
    horizontal, vertical = tree["components"][:2]
    try:
        return CRS.from_user_input(json.dumps(horizontal)), str(vertical.get("name", "unknown"))
    except (CRSError, CPLE_BaseError, ValueError):
        return crs, str(vertical.get("name", "unknown"))


@functools.lru_cache(maxsize=64)
def describe_crs(name: str) -> CrsFacts:
    """`name` is a code or WKT, as `RasterFacts.crs` holds it."""
    crs = parse_crs(name)
    tree = _tree(crs)
    unit, metres = _unit(crs)
    return CrsFacts(
        name=str(tree.get("name", name)),
        is_geographic=bool(crs.is_geographic),
        is_local=tree.get("type") == "EngineeringCRS" or not (crs.is_geographic or crs.is_projected),
        radius_metres=_radius(tree),
        unit=unit,
        metres_per_unit=metres,
        area_of_use=_area_of_use(tree),
    )


def _unknown(text: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{shortened(text, 60)}' is not a known CRS",
        code="raster.crs-unknown",
        hint="pass a code such as EPSG:32633, or WKT",
    )


def _tree(crs: CRS) -> dict[str, Any]:
    """PROJ's JSON; empty where PROJ cannot express the CRS."""
    try:
        return dict(crs.to_dict(projjson=True))
    except (CRSError, CPLE_BaseError, ValueError):
        return {}


def _unit(crs: CRS) -> tuple[str | None, float | None]:
    try:
        unit, factor = crs.units_factor
    except (CRSError, CPLE_BaseError, ValueError):
        return None, None
    return str(unit), float(factor) if crs.is_projected else None


def _radius(tree: Any) -> float | None:
    """The semi-major axis of the first ellipsoid in the tree, in metres."""
    if isinstance(tree, list):
        return next((radius for branch in tree if (radius := _radius(branch))), None)
    if not isinstance(tree, dict):
        return None
    if ellipsoid := tree.get("ellipsoid"):
        return _metres(ellipsoid.get("semi_major_axis", ellipsoid.get("radius")))
    return next((radius for branch in tree.values() if (radius := _radius(branch))), None)


def _metres(length: Any) -> float | None:
    if isinstance(length, dict):
        unit = length.get("unit")
        factor = unit.get("conversion_factor", 1.0) if isinstance(unit, dict) else 1.0
        return float(length["value"]) * float(factor)
    return float(length) if length else None


def _area_of_use(tree: dict[str, Any]) -> BBox | None:
    box = tree.get("bbox")
    if not isinstance(box, dict):
        return None
    return BBox(box["west_longitude"], box["south_latitude"], box["east_longitude"], box["north_latitude"])
