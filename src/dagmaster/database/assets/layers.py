"""The layers of assets: rows of metadata, of the catalogue, and of the layers that the external database must have.

The functions run in the transaction of the caller, who has locked the asset.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from psycopg.types.json import Jsonb

from dagmaster.client.models.layers import LayerMetadataInfo
from dagmaster.database.connect import Connection
from dagmaster.database.queries import query
from dagmaster.database.reads.session import models
from dagmaster.database.session import dicts

Metadata = Mapping[str, Any]
FIELDS = ("title", "description", "keywords", "attribution", "style")


async def read_metadata(connection: Connection, asset_id: str, layers: Sequence[str]) -> list[LayerMetadataInfo]:
    rows = await dicts(connection, "layer_metadata_of", {"asset_id": asset_id, "layers": list(layers)})
    return models(LayerMetadataInfo, rows)


async def write_metadata(connection: Connection, asset_id: str, layer: str, metadata: Metadata, actor: str) -> None:
    values = {
        "asset_id": asset_id,
        "layer": layer,
        "title": metadata.get("title"),
        "description": metadata.get("description"),
        "keywords": list(metadata.get("keywords") or []),
        "attribution": metadata.get("attribution"),
        "style": Jsonb(dict(metadata.get("style") or {})),
        "actor": actor,
    }
    await connection.execute(query("layer_metadata_put"), values)


async def put_layer(connection: Connection, info: LayerMetadataInfo, actor: str) -> bool:
    """Publish the edited metadata of a layer. Returns whether the catalogue has changed."""
    metadata = edited(info)
    digest = digest_of(metadata)
    place = {"asset_id": info.asset_id, "layer": info.layer}
    published = await dicts(connection, "layer_catalog_digest", place)
    values = {
        **place,
        "metadata": Jsonb(metadata),
        "change_number": int(info.etag),
        "digest": digest,
        "actor": actor,
    }
    await connection.execute(query("layer_catalog_put"), values)
    return [row["digest"] for row in published] != [digest]


async def remove_layer(connection: Connection, asset_id: str, layer: str) -> bool:
    return bool(await dicts(connection, "layer_catalog_remove", {"asset_id": asset_id, "layer": layer}))


async def follow_asset(connection: Connection, asset_id: str) -> None:
    """After a change of who may see the asset: withdraw its layers, or change their clearance, also in the external
    database."""
    for name in ("layer_catalog_withdraw", "layer_catalog_clear", "layer_external_make_due"):
        await connection.execute(query(name), {"asset_id": asset_id})


async def make_due_externally(connection: Connection, asset_id: str) -> None:
    """Make those layers of an asset due again that the external database has."""
    await connection.execute(query("layer_external_make_due"), {"asset_id": asset_id})


async def publish_externally(connection: Connection, asset_id: str, layer: str, actor: str) -> None:
    """Request that the layer is published to the external database."""
    values = {"asset_id": asset_id, "layer": layer, "actor": actor}
    await connection.execute(query("layer_external_want"), values)


async def withdraw_externally(connection: Connection, asset_id: str, layer: str, actor: str) -> bool:
    """Withdraw the layer from the external database. Returns whether it was published there, or due to be."""
    values = {"asset_id": asset_id, "layer": layer, "actor": actor}
    return bool(await dicts(connection, "layer_external_withdraw", values))


def edited(info: LayerMetadataInfo) -> dict[str, Any]:
    """The fields that were edited; empty ones are left out."""
    return {name: value for name in FIELDS if (value := getattr(info, name))}


def digest_of(metadata: Metadata) -> str:
    return hashlib.sha256(orjson.dumps(dict(metadata), option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
