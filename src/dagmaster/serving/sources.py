"""The sources of tiles: the file of a revision, its bounds and how it is rendered, from its STAC documents.

    a revision ──▶ its collection ──▶ the mosaic of that version, or the item `<dataset_id>-v<ordinal>`
                                          └──▶ href ──▶ a location in storage ──▶ a path for GDAL

Who may read the revision is decided before, in `access`. No part of a request becomes a path: the href of an asset is
the URL of a file on this server (`/files/silver/…`), and the file must be in a zone that is served.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from dagmaster import addresses
from dagmaster.assets.layers import RASTER
from dagmaster.bbox import BBox
from dagmaster.database.assets.publications import LayerTexts
from dagmaster.database.catalog.datasets import CatalogReader
from dagmaster.errors import UnfitData
from dagmaster.serving.access import ReadableRevision
from dagmaster.serving.rendering import Rendering, rendering_of
from dagmaster.serving.shared_tasks import SharedTasks
from dagmaster.stac.item import item_id
from dagmaster.stac.layers import described, styled
from dagmaster.storage.location import Location

# How long documents of a preview are kept: a map requests some forty tiles at once.
_PREVIEW_SECONDS = 2.0
_MAX_FILE_LISTS = 64  # a revision may have thousands of files
Json = dict[str, Any]
_EDITION = re.compile(r"/v(\d{1,9})/r(\d{1,9})/")
_MOSAIC = re.compile(r"mosaic(?:[-_].*)?")
WORLD = BBox(-180.0, -90.0, 180.0, 90.0)


class SourceKind(StrEnum):
    COG = "cog"
    MOSAIC = "mosaic"


@dataclass(frozen=True, slots=True)
class TileSource:
    """One revision of one version of a dataset."""

    dataset_id: str
    kind: SourceKind
    ordinal: int
    revision: int
    location: Location
    bounds: BBox
    digest: str  # changes with the href, the checksum, the time of the catalogue entry and the layer metadata
    rendering: Rendering = field(default_factory=Rendering)
    title: str | None = None
    attribution: str | None = None
    asset_id: str = ""
    is_published: bool = True  # false for a preview

    @property
    def revision_tag(self) -> str:
        """A revision and its digest: a new database may use the same numbers for other data."""
        return f"{self.revision}-{self.digest}"

    @property
    def tag(self) -> str:
        return f"{self.ordinal}-{self.revision_tag}"


class SourceResolver:
    """Reads the documents of a revision. Those of a published one never change; a preview may be processed again."""

    def __init__(self, catalog: CatalogReader) -> None:
        self._catalog = catalog
        self._sources: SharedTasks[TileSource] = SharedTasks()
        self._files: SharedTasks[frozenset[Location]] = SharedTasks(max_kept=_MAX_FILE_LISTS)

    async def resolve(self, readable: ReadableRevision) -> TileSource:
        return await self._sources.get(_key(readable), lambda: self._read(readable), _kept_seconds(readable))

    async def files(self, readable: ReadableRevision) -> frozenset[Location]:
        """The files that the documents of a revision name. Other files were not reviewed."""
        return await self._files.get(_key(readable), lambda: self._read_files(readable), _kept_seconds(readable))

    async def _read_files(self, readable: ReadableRevision) -> frozenset[Location]:
        hrefs = await self._catalog.hrefs(readable.dataset_id, readable.ordinal, readable.revision)
        return frozenset(location for href in hrefs if (location := addresses.location_of(href)))

    async def _read(self, readable: ReadableRevision) -> TileSource:
        dataset_id, ordinal, revision = readable.dataset_id, readable.ordinal, readable.revision
        document_id = item_id(dataset_id, ordinal)
        documents = await self._catalog.documents(dataset_id, ordinal, revision, ["", document_id])
        collection, item = documents.get("", {}), documents.get(document_id)
        if readable.metadata:
            collection, item = _described(collection, item, readable.metadata)
        if mosaic := _mosaics_of(collection).get(ordinal):
            source = _mosaic_source(dataset_id, collection, mosaic)
        elif item:
            source = cog_source(dataset_id, collection, item, ordinal)
        else:
            raise UnfitData("the version has neither a mosaic nor a file", code="tiles.no-data")
        return replace(
            source,
            digest=_combined(source.digest, readable.metadata),
            ordinal=ordinal,
            revision=revision,
            asset_id=readable.asset_id,
            is_published=readable.is_published,
        )

    def clear(self) -> None:
        self._sources.clear()
        self._files.clear()


def _described(collection: Json, item: Json | None, layer: LayerTexts) -> tuple[Json, Json | None]:
    """The documents with the layer metadata. The collection's attribution and title replace those of the item."""
    described_collection = described(collection, {RASTER: layer.metadata})
    if item is None:
        return described_collection, None
    properties = dict(item.get("properties") or {})
    if style := layer.metadata.get("style"):
        bands = ((item.get("assets") or {}).get("data") or {}).get("bands") or []
        properties["renders"] = styled(properties.get("renders") or {}, style, len(bands) or None)
    if title := layer.metadata.get("title"):
        properties["title"] = title
    if layer.metadata.get("attribution"):
        properties["providers"] = described_collection["providers"]
    return described_collection, {**item, "properties": properties}


def _combined(digest: str, layer: LayerTexts | None) -> str:
    """Tiles change with the style, so their URLs must change too."""
    return hashlib.sha256(f"{digest}\n{layer.digest}".encode()).hexdigest()[:10] if layer else digest


def _key(readable: ReadableRevision) -> tuple[object, ...]:
    return readable.asset_id, readable.ordinal, readable.revision, readable.is_published, readable.metadata


def _kept_seconds(readable: ReadableRevision) -> float:
    return math.inf if readable.is_published else _PREVIEW_SECONDS


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


def _edition_of(asset: Mapping[str, Any], parent: Mapping[str, Any]) -> tuple[int, int]:
    """Ordinal and revision from the properties of the asset or of its parent, else from the path of the file."""
    for properties in (asset, parent):
        if "dagmaster:version_ordinal" in properties:
            return int(properties["dagmaster:version_ordinal"]), int(properties.get("dagmaster:revision", 1))
    match = _EDITION.search(str(asset.get("href", "")))
    return (int(match[1]), int(match[2])) if match else (0, 1)


def _mosaic_source(dataset_id: str, collection: Mapping[str, Any], asset: Mapping[str, Any]) -> TileSource:
    ordinal, revision = _edition_of(asset, collection)
    boxes = collection.get("extent", {}).get("spatial", {}).get("bbox") or []
    return TileSource(
        dataset_id=dataset_id,
        kind=SourceKind.MOSAIC,
        ordinal=ordinal,
        revision=revision,
        location=location_of(asset["href"]),
        bounds=bounds_of(asset.get("dagmaster:bbox") or (boxes[0] if boxes else None)),
        digest=_digest(asset, asset.get("updated") or collection.get("updated")),
        rendering=rendering_of(collection, asset, f"v{ordinal}"),
        title=collection.get("title"),
        attribution=_attribution(collection),
    )


def cog_source(dataset_id: str, collection: Mapping[str, Any], item: Mapping[str, Any], ordinal: int) -> TileSource:
    properties = item.get("properties") or {}
    asset = (item.get("assets") or {}).get("data")
    if asset is None:
        raise UnfitData("the version has no data asset", code="tiles.no-data")
    return TileSource(
        dataset_id=dataset_id,
        kind=SourceKind.COG,
        ordinal=ordinal,
        revision=int(properties.get("dagmaster:revision", 1)),
        location=location_of(asset["href"]),
        bounds=bounds_of(item.get("bbox")),
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


def bounds_of(bbox: Any) -> BBox:
    """The bbox of a STAC document; the whole world if it has none."""
    return BBox.of(map(float, bbox)) if bbox and len(bbox) in (4, 6) else WORLD
