"""STAC documents and mosaics for the external zone: a static catalogue that needs no map server.

    stac/<dataset>/v<ordinal>/r<revision>/collection.json, <item>.json

Hrefs of files and documents of the same revision are relative, so that the catalogue can be read under any URL of the
zone, and copied to another place. Links to map tiles and other versions, which only the map server has, use its
public URL; they are left out if it has none. The functions do not access storage.
"""

import copy
import posixpath
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import orjson

from dagmaster.addresses import location_of
from dagmaster.storage.location import STAC_COLLECTION, Edition, Location

Json = dict[str, Any]

_COLLECTION_RELATIONS: Final = frozenset({"root", "parent", "collection"})
_NOT_STATIC: Final = frozenset({"self", "items", "item", "data", "conformance", "search"})


def item_name(item_id: str) -> str:
    return f"{item_id}.json"


def files_in(document: Json) -> Iterator[tuple[Location, Json]]:
    """The files of the served zones that a document names, each with its asset."""
    for asset in _assets(document).values():
        location = location_of(str(asset.get("href") or ""))
        if location is not None:
            yield location, asset


def belongs_to(edition: Edition, location: Location) -> bool:
    return any(location.blob.startswith(f"{folder}/") for folder in edition.folders())


def checksum_of(asset: Json) -> str | None:
    """The SHA-256 in a multihash."""
    text = asset.get("file:checksum")
    is_sha256 = isinstance(text, str) and text.startswith("1220") and len(text) == 68
    return str(text)[4:] if is_sha256 else None


def external_item(item: Json, edition: Edition, served_at: str | None) -> Json:
    """`served_at` is the public URL of the map server, if it has one."""
    document = _rewritten(item, edition, served_at)
    document["links"] = [*_collection_links(("root", "parent", "collection")), *document["links"]]
    return document


def external_collection(collection: Json, edition: Edition, served_at: str | None, item_ids: Sequence[str]) -> Json:
    document = _rewritten(collection, edition, served_at)
    items = [
        {"rel": "item", "type": "application/geo+json", "href": f"./{quote(item_name(item_id))}"}
        for item_id in sorted(item_ids)
    ]
    document["links"] = [*_collection_links(("root",)), *items, *document["links"]]
    return document


def external_mosaic(document: bytes, cogs_url: str) -> bytes:
    """The mosaic with the URL of its COGs: their names are relative, and MosaicJSON does not define a base for them."""
    try:
        mosaic = orjson.loads(document)
        names = {name for tile in mosaic["tiles"].values() for name in tile}
        if mosaic.get("asset_prefix") or any("://" in name or name.startswith("/") for name in names):
            return document
        tiles = {key: [quote(name) for name in tile] for key, tile in mosaic["tiles"].items()}
    except (AttributeError, KeyError, TypeError, orjson.JSONDecodeError):
        return document
    return orjson.dumps(mosaic | {"asset_prefix": cogs_url, "tiles": tiles})


def _rewritten(document: Json, edition: Edition, served_at: str | None) -> Json:
    """A copy with hrefs for the external zone, and only with the links that a static document may have."""
    document = copy.deepcopy(document)
    assets = {
        key: {**asset, "href": href}
        for key, asset in _assets(document).items()
        if (href := _href(str(asset.get("href") or ""), edition, served_at))
    }
    if "assets" in document:
        document["assets"] = assets
    links = [link for link in document.get("links") or [] if isinstance(link, dict)]
    exported = [link for link in links if link.get("rel") not in _COLLECTION_RELATIONS | _NOT_STATIC]
    document["links"] = [
        {**link, "href": href} for link in exported if (href := _href(str(link.get("href") or ""), edition, served_at))
    ]
    return document


def _href(href: str, edition: Edition, served_at: str | None) -> str | None:
    """The href to use in the external zone; None if its target is not public."""
    location = location_of(href)
    if location is not None and belongs_to(edition, location):
        return quote(posixpath.relpath(location.blob, posixpath.dirname(edition.stac("x"))))
    if href.startswith("/"):
        return f"{served_at}{href}" if served_at else None
    return href or None


def _collection_links(relations: Sequence[str]) -> list[Json]:
    return [{"rel": rel, "type": "application/json", "href": f"./{STAC_COLLECTION}"} for rel in relations]


def _assets(document: Json) -> dict[str, Json]:
    assets = document.get("assets")
    return {key: asset for key, asset in assets.items() if isinstance(asset, dict)} if isinstance(assets, dict) else {}
