"""Published assets for the benchmarks of the map server: rows as they are after a review, without jobs."""

from collections.abc import Iterable, Mapping
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from dagmaster.access.caller import Scope
from dagmaster.assets.identity import asset_id_of
from dagmaster.client.models.assets import KeyRequest
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.database.catalog.pgstac import deploy_catalog
from dagmaster.database.schema.deploy import deploy
from dagmaster.operations.keys import create_key

# Set-based: a benchmark has thousands of assets.
_GIVEN = (
    "unnest(%(asset_ids)s::text[], %(datasets)s::text[], %(clearances)s::text[]) AS given (asset, dataset, clearance)"
)
_ASSETS = f"""
    INSERT INTO dagapp.geospatial_assets
           (asset_id, platform_id, platform_refs, dataset_id, clearance_state, cleared_at, made_public_at,
            latest_approved_version_ordinal)
    SELECT asset, 'local', '{{}}', dataset, clearance, now(), CASE WHEN clearance = 'public' THEN now() END, 0
      FROM {_GIVEN}
    """
_VERSIONS = f"""
    INSERT INTO dagapp.asset_versions
           (asset_id, version_ordinal, version_label, platform_refs, revision, approval_state, processing_state,
            approved_revision)
    SELECT asset, 0, '0', '{{}}', 1, 'approved', 'completed', 1
      FROM {_GIVEN}
    """
_REVISIONS = f"""
    INSERT INTO dagapp.asset_revisions
           (asset_id, version_ordinal, revision, parameters, source, processing_state, outputs, reviewed_as)
    SELECT asset, 0, 1, '{{}}', '{{}}', 'completed', '{{}}', 'approved'
      FROM {_GIVEN}
    """
_DOCUMENT = """
    INSERT INTO dagapp.stac_documents (dataset_id, version_ordinal, revision, document_id, content)
    VALUES (%s, 0, 1, %s, %s)
    """


def deploy_all(dsn: str) -> None:
    deploy(dsn)
    deploy_catalog(dsn)


def add_published(
    connection: psycopg.Connection[Any],
    dataset: str,
    documents: Iterable[Mapping[str, Any]] = (),
    clearance: str = "public",
) -> None:
    """An asset whose version 0, revision 1 is approved. Its items in pgSTAC are written by the caller."""
    # Documents of a reviewed revision cannot change, so they come before it.
    for document in documents:
        document_id = document["id"] if document["type"] == "Feature" else ""
        connection.execute(_DOCUMENT, [dataset, document_id, Jsonb(document)])
    add_all_published(connection, {dataset: clearance})


def add_all_published(connection: psycopg.Connection[Any], clearances: Mapping[str, str]) -> None:
    """The same for many datasets, by their clearances, without documents."""
    values = {
        "asset_ids": [asset_id_of("local", {"dataset": dataset}) for dataset in clearances],
        "datasets": list(clearances),
        "clearances": list(clearances.values()),
    }
    for statement in (_ASSETS, _VERSIONS, _REVISIONS):
        connection.execute(statement, values)


async def new_key(dsn: str) -> str:
    """Create a key with the scope viewer."""
    async with KeyStore(dsn) as store:
        request = KeyRequest(name="bench", scopes=[Scope.VIEWER])
        return (await create_key(store, request, KeyChange("bench"))).key
