"""Which files a dataset's version is made of, how it shall look, and where the catalogue says so.

    /tiles/{asset_id}?version=… ──▶ collection ──▶ its mosaic of that version, or the item `<asset_id>-v<ordinal>`
                                                        └──▶ href ──▶ a location in storage ──▶ a path for GDAL

Nothing of a request ever becomes a path: an asset's href is our own address of a file (`…/files/silver/…`), and what it names
must be in a zone that is served.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from dagmaster import addresses
from dagmaster.bbox import BBox
from dagmaster.database.catalog.datasets import Served, ServedDataset
from dagmaster.errors import NotFound, UnfitData
from dagmaster.serving.rendering import Rendering, rendering_of
from dagmaster.storage.location import Location

LATEST = "latest"

# How long an answer of the catalogue is used again: a map asks for some forty tiles at once.
_LATEST_SECONDS, _PINNED_SECONDS = 1.5, 30.0
_MOST_REMEMBERED = 1024
_EDITION = re.compile(r"/v(\d{1,9})/r(\d{1,9})/")
_MOSAIC = re.compile(r"mosaic(?:[-_].*)?")
_WORLD = BBox(-180.0, -90.0, 180.0, 90.0)


class Kind(StrEnum):
    COG = "cog"
    MOSAIC = "mosaic"


@dataclass(frozen=True, slots=True)
class Source:
    """One revision of one version of a dataset, as it is served."""

    asset_id: str
    kind: Kind
    ordinal: int
    revision: int
    location: Location
    bounds: BBox
    digest: str  # another one as soon as the catalogue says anything else
    rendering: Rendering = field(default_factory=Rendering)
    title: str | None = None
    attribution: str | None = None

    @property
    def revision_tag(self) -> str:
        """Names a revision and what it was made of: someone may have begun anew under the same numbers."""
        return f"{self.revision}-{self.digest}"

    @property
    def tag(self) -> str:
        return f"{self.ordinal}-{self.revision_tag}"


class Sources(Protocol):
    """Find what a dataset's version is made of; `NotFound` where there is none."""

    async def resolve(self, asset_id: str, version: str) -> Source: ...


class PgstacSources:
    """As the catalogue in pgSTAC has it."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def resolve(self, asset_id: str, version: str) -> Source:
        dataset = await self._served.dataset(asset_id)
        if dataset is None:
            raise NotFound("there is no such dataset", code="asset.not-found", hint="/stac/collections lists them")
        mosaics, item_ids = _mosaics_of(dataset.collection), _items_of(asset_id, dataset)
        ordinal = _chosen({*mosaics, *item_ids}, version)
        if ordinal in mosaics:
            return _of_mosaic(asset_id, dataset.collection, mosaics[ordinal])
        item = await self._served.item(asset_id, item_ids[ordinal])
        if item is None:  # deleted between the two questions
            raise _no_version()
        return _of_item(asset_id, dataset.collection, item, ordinal)


@dataclass(slots=True)
class _Answer:
    """Or a question that is under way; and the one that was asked after it, ahead of its end."""

    task: "asyncio.Task[Source]"
    renewed_from: float
    until: float
    following: "_Answer | None" = None


class Remembered:
    """Asks the same thing once in a while, and once for all who ask at the same time.

    Asks again when half of the while is over, so that where many ask nobody waits.
    """

    def __init__(self, sources: Sources, clock: Callable[[], float] = time.monotonic) -> None:
        self._sources = sources
        self._clock = clock
        self._asked: dict[tuple[str, str, str | None], _Answer] = {}

    async def resolve(self, asset_id: str, version: str, pin: str | None = None) -> Source:
        """`pin` is what someone holds for the version's revision. Who holds none must hear of a new one soon."""
        key, now = (asset_id, version, pin), self._clock()
        answer = self._asked.get(key)
        if answer and answer.following and answer.following.task.done() and not _is_of_no_use(answer.following, now):
            answer = self._asked[key] = answer.following
        if answer is None or _is_of_no_use(answer, now):
            answer = self._ask(*key)
            self._forget_the_oldest()
            self._asked[key] = answer
        elif answer.renewed_from < now and answer.following is None:
            answer.following = self._ask(*key)
        # Shielded: one who leaves does not take the answer from the others.
        return await asyncio.shield(answer.task)

    def forget(self) -> None:
        self._asked.clear()

    def _ask(self, asset_id: str, version: str, pin: str | None) -> _Answer:
        now, lasts = self._clock(), _PINNED_SECONDS if pin else _LATEST_SECONDS
        task = asyncio.create_task(self._sources.resolve(asset_id, version))
        # Whoever asked first may have left when it fails, and nobody else has to fetch the error.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return _Answer(task, now + lasts / 2, now + lasts)

    def _forget_the_oldest(self) -> None:
        while len(self._asked) >= _MOST_REMEMBERED:
            del self._asked[next(iter(self._asked))]


def _is_of_no_use(answer: _Answer, now: float) -> bool:
    """What failed is asked again at once, but for what is not there: anybody can ask for that, and often."""
    if answer.until < now:
        return True
    if not answer.task.done():
        return False
    return answer.task.cancelled() or not isinstance(answer.task.exception(), NotFound | None)


def location_of(href: str) -> Location:
    """The location that an asset's href stands for, whatever base it was stored with."""
    location = addresses.location_of(href)
    if location is None:
        raise _not_ours()
    return location


def _mosaics_of(collection: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The mosaics of a collection by the ordinal of their version."""
    assets = collection.get("assets") or {}
    found = (asset for key, asset in sorted(assets.items()) if _MOSAIC.fullmatch(key))
    return {_edition_of(asset, collection)[0]: asset for asset in found}


def _items_of(asset_id: str, dataset: ServedDataset) -> dict[int, str]:
    return {int(item_id.removeprefix(f"{asset_id}-v")): item_id for item_id in dataset.item_ids}


def _chosen(ordinals: Iterable[int], version: str) -> int:
    known = set(ordinals)
    ordinal = max(known, default=None) if version == LATEST else int(version)
    if ordinal is None or ordinal not in known:
        raise _no_version()
    return ordinal


def _edition_of(asset: Mapping[str, Any], holder: Mapping[str, Any]) -> tuple[int, int]:
    """Ordinal and revision: as they are said, else as the file is named."""
    named = _EDITION.search(str(asset.get("href", "")))
    for said in (asset, holder):
        if "dagmaster:version_ordinal" in said:
            return int(said["dagmaster:version_ordinal"]), int(said.get("dagmaster:revision", 1))
    return (int(named[1]), int(named[2])) if named else (0, 1)


def _of_mosaic(asset_id: str, collection: Mapping[str, Any], asset: Mapping[str, Any]) -> Source:
    ordinal, revision = _edition_of(asset, collection)
    boxes = collection.get("extent", {}).get("spatial", {}).get("bbox") or []
    bounds = asset.get("dagmaster:bbox") or (boxes[0] if boxes else None)
    updated = asset.get("updated") or collection.get("updated")
    return Source(
        asset_id, Kind.MOSAIC, ordinal, revision, location_of(asset["href"]), _flat(bounds), _digest(asset, updated),
        rendering_of(collection, asset, f"v{ordinal}"), collection.get("title"), _attribution(collection),
    )  # fmt: skip


def _of_item(asset_id: str, collection: Mapping[str, Any], item: Mapping[str, Any], ordinal: int) -> Source:
    properties = item.get("properties") or {}
    asset = (item.get("assets") or {}).get("data")
    if asset is None:
        raise UnfitData("the version has no data to make tiles of", code="tiles.no-data")
    return Source(
        asset_id, Kind.COG, ordinal, int(properties.get("dagmaster:revision", 1)), location_of(asset["href"]),
        _flat(item.get("bbox")), _digest(asset, properties.get("updated")), rendering_of(properties, asset),
        properties.get("title") or collection.get("title"), _attribution(properties) or _attribution(collection),
    )  # fmt: skip


def _attribution(said: Mapping[str, Any]) -> str | None:
    """Who is to be named: producers and licensors, and the licence."""
    providers = said.get("providers") or []
    names = [str(p.get("name")) for p in providers if {"producer", "licensor"} & set(p.get("roles") or ())]
    licence = said.get("license")
    shown = [", ".join(dict.fromkeys(names))] if names else []
    return " · ".join([*shown, *([str(licence)] if licence and licence != "other" else [])]) or None


def _digest(asset: Mapping[str, Any], updated: object) -> str:
    said = f"{asset.get('href')}\n{asset.get('file:checksum')}\n{updated}"
    return hashlib.sha256(said.encode()).hexdigest()[:10]


def _flat(bbox: Any) -> BBox:
    """Of a STAC document; the world if it has none that can be read."""
    return BBox.of(map(float, bbox)) if bbox and len(bbox) in (4, 6) else _WORLD


def _no_version() -> NotFound:
    return NotFound("the dataset has no such version", code="version.not-found", hint="version=latest is the newest")


def _not_ours() -> UnfitData:
    return UnfitData("the version's data is not in a zone that is served", code="tiles.elsewhere")
