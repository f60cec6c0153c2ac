"""Find a version of a dataset in the catalogue: its file, its bounds and how it is rendered.

    /tiles/{asset_id}?version=… ──▶ collection ──▶ its mosaic of that version, or the item `<asset_id>-v<ordinal>`
                                                        └──▶ href ──▶ a location in storage ──▶ a path for GDAL

No part of a request becomes a path: the href of an asset is the URL of a file on this server (`…/files/silver/…`), and
the file must be in a zone that is served.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from dagmaster import addresses
from dagmaster.bbox import BBox
from dagmaster.database.catalog.datasets import CatalogReader, ServedDataset
from dagmaster.errors import NotFound, UnfitData
from dagmaster.serving.rendering import Rendering, rendering_of
from dagmaster.storage.location import Location

LATEST = "latest"

# How long a result of the catalogue is cached: a map requests some forty tiles at once.
_LATEST_SECONDS, _PINNED_SECONDS = 1.5, 30.0
_MAX_CACHED = 1024
_EDITION = re.compile(r"/v(\d{1,9})/r(\d{1,9})/")
_MOSAIC = re.compile(r"mosaic(?:[-_].*)?")
_WORLD = BBox(-180.0, -90.0, 180.0, 90.0)


class SourceKind(StrEnum):
    COG = "cog"
    MOSAIC = "mosaic"


@dataclass(frozen=True, slots=True)
class TileSource:
    """One revision of one version of a dataset."""

    asset_id: str
    kind: SourceKind
    ordinal: int
    revision: int
    location: Location
    bounds: BBox
    digest: str  # changes with the href, the checksum and the time of the catalogue entry
    rendering: Rendering = field(default_factory=Rendering)
    title: str | None = None
    attribution: str | None = None

    @property
    def revision_tag(self) -> str:
        """A revision and its digest: a dataset may have been deleted and created again with the same numbers."""
        return f"{self.revision}-{self.digest}"

    @property
    def tag(self) -> str:
        return f"{self.ordinal}-{self.revision_tag}"


class SourceResolver(Protocol):
    """Finds a version of a dataset; raises `NotFound` if it does not exist."""

    async def resolve(self, asset_id: str, version: str) -> TileSource: ...


class PgstacResolver:
    """Reads the catalogue in pgSTAC."""

    def __init__(self, catalog: CatalogReader) -> None:
        self._catalog = catalog

    async def resolve(self, asset_id: str, version: str) -> TileSource:
        dataset = await self._catalog.dataset(asset_id)
        if dataset is None:
            raise NotFound(
                "the dataset does not exist", code="asset.not-found", hint="/stac/collections lists datasets"
            )
        mosaics, item_ids = _mosaics_of(dataset.collection), _items_of(asset_id, dataset)
        ordinal = _select_ordinal({*mosaics, *item_ids}, version)
        if ordinal in mosaics:
            return _mosaic_source(asset_id, dataset.collection, mosaics[ordinal])
        item = await self._catalog.item(asset_id, item_ids[ordinal])
        if item is None:  # deleted between the two queries
            raise _no_version()
        return _cog_source(asset_id, dataset.collection, item, ordinal)


@dataclass(slots=True)
class _CacheEntry:
    """A query that is done or running, and the query that replaces it before it expires."""

    task: "asyncio.Task[TileSource]"
    refresh_at: float
    expires_at: float
    refresh: "_CacheEntry | None" = None


class CachedResolver:
    """Caches sources for seconds, and shares one query among concurrent requests.

    An entry is refreshed in the background at half of its lifetime: under load no request waits for the catalogue.
    """

    def __init__(self, resolver: SourceResolver, clock: Callable[[], float] = time.monotonic) -> None:
        self._resolver = resolver
        self._clock = clock
        self._entries: dict[tuple[str, str, str | None], _CacheEntry] = {}

    async def resolve(self, asset_id: str, version: str, rev: str | None = None) -> TileSource:
        """`rev` is the revision that the request names. Requests without one must see a new revision soon."""
        key, now = (asset_id, version, rev), self._clock()
        entry = self._entries.get(key)
        if entry and entry.refresh and entry.refresh.task.done() and not _is_expired(entry.refresh, now):
            entry = self._entries[key] = entry.refresh
        if entry is None or _is_expired(entry, now):
            entry = self._query(*key)
            self._evict()
            self._entries[key] = entry
        elif entry.refresh_at < now and entry.refresh is None:
            entry.refresh = self._query(*key)
        # Shielded: a request that is cancelled does not cancel the query that others wait for.
        return await asyncio.shield(entry.task)

    def clear(self) -> None:
        self._entries.clear()

    def _query(self, asset_id: str, version: str, rev: str | None) -> _CacheEntry:
        now, lifetime = self._clock(), _PINNED_SECONDS if rev else _LATEST_SECONDS
        task = asyncio.create_task(self._resolver.resolve(asset_id, version))
        # Retrieve the error: asyncio logs it as lost if every request that waited was cancelled.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return _CacheEntry(task, now + lifetime / 2, now + lifetime)

    def _evict(self) -> None:
        while len(self._entries) >= _MAX_CACHED:
            del self._entries[next(iter(self._entries))]


def _is_expired(entry: _CacheEntry, now: float) -> bool:
    """A failed query is repeated at once. `NotFound` is cached: clients may request missing datasets often."""
    if entry.expires_at < now:
        return True
    if not entry.task.done():
        return False
    return entry.task.cancelled() or not isinstance(entry.task.exception(), NotFound | None)


def location_of(href: str) -> Location:
    """The location of the file behind the href of an asset, whatever base URL it was stored with."""
    location = addresses.location_of(href)
    if location is None:
        raise UnfitData("the file of this version is not in a zone that is served", code="tiles.elsewhere")
    return location


def _mosaics_of(collection: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The mosaics of a collection by the ordinal of their version."""
    assets = collection.get("assets") or {}
    mosaics = (asset for key, asset in sorted(assets.items()) if _MOSAIC.fullmatch(key))
    return {_edition_of(asset, collection)[0]: asset for asset in mosaics}


def _items_of(asset_id: str, dataset: ServedDataset) -> dict[int, str]:
    return {int(item_id.removeprefix(f"{asset_id}-v")): item_id for item_id in dataset.item_ids}


def _select_ordinal(ordinals: Collection[int], version: str) -> int:
    ordinal = max(ordinals, default=None) if version == LATEST else int(version)
    if ordinal is None or ordinal not in ordinals:
        raise _no_version()
    return ordinal


def _edition_of(asset: Mapping[str, Any], parent: Mapping[str, Any]) -> tuple[int, int]:
    """Ordinal and revision from the properties of the asset or of its parent, else from the path of the file."""
    for properties in (asset, parent):
        if "dagmaster:version_ordinal" in properties:
            return int(properties["dagmaster:version_ordinal"]), int(properties.get("dagmaster:revision", 1))
    match = _EDITION.search(str(asset.get("href", "")))
    return (int(match[1]), int(match[2])) if match else (0, 1)


def _mosaic_source(asset_id: str, collection: Mapping[str, Any], asset: Mapping[str, Any]) -> TileSource:
    ordinal, revision = _edition_of(asset, collection)
    boxes = collection.get("extent", {}).get("spatial", {}).get("bbox") or []
    return TileSource(
        asset_id=asset_id,
        kind=SourceKind.MOSAIC,
        ordinal=ordinal,
        revision=revision,
        location=location_of(asset["href"]),
        bounds=_bounds(asset.get("dagmaster:bbox") or (boxes[0] if boxes else None)),
        digest=_digest(asset, asset.get("updated") or collection.get("updated")),
        rendering=rendering_of(collection, asset, f"v{ordinal}"),
        title=collection.get("title"),
        attribution=_attribution(collection),
    )


def _cog_source(asset_id: str, collection: Mapping[str, Any], item: Mapping[str, Any], ordinal: int) -> TileSource:
    properties = item.get("properties") or {}
    asset = (item.get("assets") or {}).get("data")
    if asset is None:
        raise UnfitData("the version has no data asset", code="tiles.no-data")
    return TileSource(
        asset_id=asset_id,
        kind=SourceKind.COG,
        ordinal=ordinal,
        revision=int(properties.get("dagmaster:revision", 1)),
        location=location_of(asset["href"]),
        bounds=_bounds(item.get("bbox")),
        digest=_digest(asset, properties.get("updated")),
        rendering=rendering_of(properties, asset),
        title=properties.get("title") or collection.get("title"),
        attribution=_attribution(properties) or _attribution(collection),
    )


def _attribution(metadata: Mapping[str, Any]) -> str | None:
    """Producers, licensors and the licence."""
    providers = metadata.get("providers") or []
    names = [str(p.get("name")) for p in providers if {"producer", "licensor"} & set(p.get("roles") or ())]
    licence = metadata.get("license")
    parts = [", ".join(dict.fromkeys(names))] if names else []
    return " · ".join([*parts, *([str(licence)] if licence and licence != "other" else [])]) or None


def _digest(asset: Mapping[str, Any], updated: object) -> str:
    identity = f"{asset.get('href')}\n{asset.get('file:checksum')}\n{updated}"
    return hashlib.sha256(identity.encode()).hexdigest()[:10]


def _bounds(bbox: Any) -> BBox:
    """The bbox of a STAC document; the whole world if it has none."""
    return BBox.of(map(float, bbox)) if bbox and len(bbox) in (4, 6) else _WORLD


def _no_version() -> NotFound:
    return NotFound(
        "the dataset does not have this version", code="version.not-found", hint="use version=latest for the newest"
    )
