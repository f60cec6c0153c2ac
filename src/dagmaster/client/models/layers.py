"""Layers: their metadata, how they are drawn, and the catalogue that portals read.

Texts are plain text. HTML, templates and SQL in them have no meaning: they are stored and shown as they are.
"""

import math
import unicodedata
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from dagmaster.client.models.assets import ClearanceLevel
from dagmaster.client.models.base import ApiModel, Extensible, RequestModel

_LINE_BREAKS = frozenset("\n\t")
MAX_KEYWORDS = 50
MAX_COLORS = 256


def _plain(text: str, allowed: frozenset[str] = frozenset()) -> str:
    """The text without surrounding spaces. Control characters and marks of writing direction are refused."""
    text = text.strip()
    if not text:
        raise ValueError("must not be empty; leave it out, or send null to remove it")
    if any(unicodedata.category(each) in ("Cc", "Cf", "Cs", "Co") and each not in allowed for each in text):
        raise ValueError("must be plain text without control characters")
    return text


def _plain_lines(text: str) -> str:
    return _plain(text.replace("\r\n", "\n"), _LINE_BREAKS)


def _distinct(keywords: list[str]) -> list[str]:
    return list(dict.fromkeys(keywords))


def _range(pair: tuple[float, float]) -> tuple[float, float]:
    low, high = pair
    if not (low < high and math.isfinite(high - low)):
        raise ValueError("must be two numbers, the lower one first")
    return pair


PlainLine = Annotated[str, AfterValidator(_plain)]
PlainText = Annotated[str, AfterValidator(_plain_lines)]
StyleNumber = Annotated[float, Field(allow_inf_nan=False)]
Color = Annotated[str, Field(pattern=r"^#[0-9a-fA-F]{6}([0-9a-fA-F]{2})?$", examples=["#1f78b4"])]
Keywords = Annotated[
    list[Annotated[PlainLine, Field(max_length=80)]], Field(max_length=MAX_KEYWORDS), AfterValidator(_distinct)
]


class LayerStyle(RequestModel):
    """How a raster is drawn unless a request sets other parameters. Fields that are not set have the defaults of the
    data.

    `rescale` has one range of values for all bands, or one for each band of `bidx`. `colormap` has the colours of
    single values, for classes; `colormap_name` is the name of a colour map for a range of values."""

    title: Annotated[PlainLine, Field(max_length=100)] | None = None
    colormap_name: Annotated[str, Field(max_length=64, pattern=r"^[a-z0-9_]+$", examples=["terrain"])] | None = None
    colormap: (
        Annotated[
            dict[Annotated[str, Field(pattern=r"^(0|-?[1-9][0-9]{0,9})$")], Color],
            Field(min_length=1, max_length=MAX_COLORS),
        ]
        | None
    ) = None
    rescale: (
        Annotated[
            list[Annotated[tuple[StyleNumber, StyleNumber], AfterValidator(_range)]], Field(min_length=1, max_length=4)
        ]
        | None
    ) = None
    bidx: Annotated[list[Annotated[int, Field(ge=1, le=65535)]], Field(min_length=1, max_length=4)] | None = None
    resampling: Literal["nearest", "bilinear", "cubic", "cubic_spline", "lanczos", "average", "mode"] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.colormap is not None and self.colormap_name is not None:
            raise ValueError("colormap and colormap_name cannot be combined")
        if self.colormap is not None and self.rescale is not None:
            raise ValueError("colormap and rescale cannot be combined")
        colored = self.colormap is not None or self.colormap_name is not None
        if colored and self.bidx is not None and len(self.bidx) != 1:
            raise ValueError("a colour map requires a single band in bidx")
        if self.rescale is not None and self.bidx is not None and len(self.rescale) not in (1, len(self.bidx)):
            raise ValueError("rescale must have one range, or one for each band of bidx")
        return self


class LayerMetadataRequest(RequestModel):
    """The whole metadata of a layer. Fields that are left out are removed; the texts of the dataset are then used."""

    title: Annotated[PlainLine, Field(max_length=200)] | None = None
    description: Annotated[PlainText, Field(max_length=10_000)] | None = None
    keywords: Keywords | None = None
    attribution: Annotated[PlainLine, Field(max_length=500)] | None = None
    style: LayerStyle | None = None


class LayerMetadataChange(LayerMetadataRequest):
    """Fields that are left out stay unchanged; null removes a field."""


class LayerMetadataInfo(ApiModel):
    """Send `etag` as `If-Match` with a change: it is refused if the metadata has changed since.

    `is_published`: the layer is in the layer catalogue. `is_changed`: the metadata was edited after it was published.
    `external` is the state in the external database: `published`, `due` (not up to date yet), or null."""

    asset_id: str
    dataset_id: str
    layer: str
    title: str | None = None
    description: str | None = None
    keywords: list[str] = []
    attribution: str | None = None
    style: dict[str, Any] | None = None
    etag: str
    updated_at: datetime | None = None
    updated_by: str | None = None
    is_published: bool = False
    is_changed: bool = False
    published_at: datetime | None = None
    published_by: str | None = None
    external: Extensible[Literal["published", "due"]] | None = None


class LayerInfo(ApiModel):
    """A published layer, as portals see it. `style` is how it is drawn by default. The version is the latest one."""

    asset_id: str
    dataset_id: str
    layer: str
    platform_id: str
    title: str
    description: str | None = None
    keywords: list[str] = []
    attribution: str | None = None
    style: dict[str, Any] = {}
    clearance_state: Extensible[ClearanceLevel]
    version_ordinal: int
    revision: int
    bbox: list[float] = []
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    published_at: datetime
    updated_at: datetime
