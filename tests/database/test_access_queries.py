"""The queries of every request to the map server, the API and the gateway use indexes, even in tables that were just
filled and have no statistics yet."""

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import ClientCursor
from tests.conftest import fresh_database

from dagmaster.database.queries import numbered

pytestmark = pytest.mark.requirement("C3", "X1")

ASSETS = 10_000
ASSET = f"{7:032x}"
VALUES: dict[str, dict[str, Any]] = {
    "publication_of_asset": {"name": ASSET, "ordinal": None, "revision": None},
    "publication_of_dataset": {"name": "dataset-7", "ordinal": 0, "revision": 1},
    "find_key": {"key_id": "key-7"},
    "find_session": {"session_id": "session-7"},
    "served_collections": {"clearances": ["public"]},
    "asset_submission": {"request_ids": ["request-7", "~7"]},
    "layer_metadata_of": {"asset_id": ASSET, "layers": ["raster"]},
    "layer_external_due": {"asset_id": None, "limit": 20},
    "gateway_layer_metadata": {"asset_id": ASSET},
}
# One row of each table for each asset. Every tenth is public.
FILL = (
    """
    INSERT INTO dagapp.geospatial_assets (asset_id, platform_id, platform_refs, dataset_id, clearance_state, cleared_at,
                                          made_public_at, latest_approved_version_ordinal)
    SELECT lpad(to_hex(n), 32, '0'), 'local', '{}', 'dataset-' || n, CASE WHEN n % 10 = 0 THEN 'public' ELSE 'ouo' END,
           now(), CASE WHEN n % 10 = 0 THEN now() END, 0
      FROM generate_series(1, {assets}) AS n
    """,
    """
    INSERT INTO dagapp.asset_versions (asset_id, version_ordinal, version_label, platform_refs, revision,
                                       approval_state, processing_state, approved_revision)
    SELECT asset_id, 0, '0', '{}', 1, 'approved', 'completed', 1 FROM dagapp.geospatial_assets
    """,
    """
    INSERT INTO dagapp.asset_revisions (asset_id, version_ordinal, revision, parameters, source, processing_state,
                                        outputs, reviewed_as)
    SELECT asset_id, 0, 1, '{}', '{}', 'completed', '{}', 'approved' FROM dagapp.geospatial_assets
    """,
    """
    INSERT INTO dagapp.asset_submissions (request_id, platform_id, asset_id, version_ordinal, revision, outcome,
                                          request_hash)
    SELECT 'request-' || n, 'local', lpad(to_hex(n), 32, '0'), 0, 1, 'new_asset', ''
      FROM generate_series(1, {assets}) AS n
    """,
    """
    INSERT INTO dagapp.layer_catalog (asset_id, layer, dataset_id, platform_id, title, clearance_state, version_ordinal,
                                      revision, digest, published_by)
    SELECT asset_id, 'raster', dataset_id, 'local', 'Title', clearance_state, 0, 1, 'x', 'bob'
      FROM dagapp.geospatial_assets
    """,
    """
    INSERT INTO dagapp.layer_metadata (asset_id, layer, title, updated_by)
    SELECT asset_id, 'raster', 'Title', 'bob' FROM dagapp.geospatial_assets
    """,
    """
    INSERT INTO dagapp.external_layers (asset_id, layer, dataset_id, requested_by)
    SELECT asset_id, 'raster', dataset_id, 'bob' FROM dagapp.geospatial_assets
    """,
    """
    INSERT INTO dagapp.api_keys (key_id, name, scopes, secret_hash)
    SELECT 'key-' || n, 'name-' || n, '{viewer}', 'x' FROM generate_series(1, {assets}) AS n
    """,
    """
    INSERT INTO dagapp.web_sessions (session_id, secret_hash, key_id, key_hash, name, scopes, expires_at)
    SELECT 'session-' || n, 'x', 'key-' || n, 'x', 'name-' || n, '{viewer}', now() + interval '1 hour'
      FROM generate_series(1, {assets}) AS n
    """,
)


@pytest.fixture(scope="module")
def filled(cluster: Any, catalog_template: str) -> Iterator[str]:
    with fresh_database(cluster, catalog_template) as dsn:
        with psycopg.connect(dsn) as connection:
            for statement in FILL:
                connection.execute(statement.replace("{assets}", str(ASSETS)))
        yield dsn


@pytest.mark.parametrize("plan", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("name", VALUES)
def test_an_access_decision_scans_no_table_of_assets_sequentially(filled: str, name: str, plan: str) -> None:
    text, names = numbered(name)

    with psycopg.connect(filled, autocommit=True) as connection:
        connection.execute(f"SET plan_cache_mode = {plan}")
        connection.execute(f"PREPARE it AS {text}")
        cursor = ClientCursor(connection)
        statement = f"EXPLAIN (COSTS OFF) EXECUTE it ({', '.join(['%s'] * len(names))})"
        lines = [row[0] for row in cursor.execute(statement, [VALUES[name][each] for each in names]).fetchall()]

    assert [
        line for line in lines if re.search(r"Seq Scan on (?:geospatial_|asset_|api_keys|layer_|external_)", line)
    ] == []
    assert any("Index" in line for line in lines), lines
