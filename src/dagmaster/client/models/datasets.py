"""Datasets, as the catalogue of the map server describes them."""

from typing import Any

from dagmaster.client.models.base import ApiModel, Json, parse, unexpected
from dagmaster.dataset_urls import DatasetUrls


class DatasetSummary(ApiModel):
    """A published dataset. `bbox` is west, south, east, north in degrees; `stac` is its STAC collection."""

    dataset_id: str
    title: str | None = None
    description: str = ""
    license: str | None = None
    keywords: list[str] = []
    bbox: tuple[float, ...] | None = None
    interval: tuple[str | None, str | None] | None = None
    map_url: str
    tilejson_url: str
    stac: dict[str, Any]

    @classmethod
    def of(cls, collection: Any, base_url: str) -> "DatasetSummary":
        """The dataset of a STAC collection, on the map server at this URL."""
        if not isinstance(collection, dict) or not isinstance(collection.get("id"), str):
            raise unexpected("a collection has no `id`")
        urls = DatasetUrls(base_url)
        names = ("title", "description", "license", "keywords")
        return parse(
            cls,
            {
                **{name: collection[name] for name in names if collection.get(name) is not None},
                "dataset_id": collection["id"],
                "bbox": _first(collection, "spatial", "bbox"),
                "interval": _first(collection, "temporal", "interval"),
                "map_url": urls.map(collection["id"]),
                "tilejson_url": urls.tilejson(collection["id"]),
                "stac": collection,
            },
        )


def _first(collection: Json, kind: str, name: str) -> Any:
    """The first entry of an extent, which covers all others."""
    extent = (collection.get("extent") or {}).get(kind) or {}
    return next(iter(extent.get(name) or ()), None)
