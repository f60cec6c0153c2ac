"""The external database has the layers of public data, gets every change, and is brought up to date after an outage."""

from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dagmaster.assets.states import Clearance
from dagmaster.database.assets.adopt import AdoptedAssets
from dagmaster.database.external.catalog import ExternalCatalog, schema
from dagmaster.database.maintenance.assets import PostgresAssetUpkeep
from dagmaster.database.queries import all_queries, numbered
from dagmaster.errors import Conflict, InvalidRequest, Unavailable
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.clear import clear
from dagmaster.operations.assets.delete import delete
from dagmaster.operations.assets.external import external_layers
from dagmaster.operations.assets.unpublish import unpublish
from dagmaster.orchestrator.asset_upkeep import AssetUpkeep
from dagmaster.settings import Settings
from tests.api.serving import V1, api
from tests.commands.kit import PUBLIC_URL, Commands
from tests.operations.kit import BOB, opened

pytestmark = pytest.mark.requirement("A6", "O2", "X3")

DOWN = "postgresql://canary-user:canary-secret@127.0.0.1:1/none"
DUE = "SELECT is_wanted, due_at IS NOT NULL AS is_due, attempts, generation, error_message FROM dagapp.external_layers"


@asynccontextmanager
async def upkeep_of(commands: Commands):
    store, assets = PostgresAssetUpkeep(commands.kit.dsn), AdoptedAssets(commands.kit.dsn)
    external = external_layers(commands.settings, commands.kit.dsn)
    upkeep = AssetUpkeep(commands.settings, store, commands.kit.storage, assets, external)
    try:
        yield upkeep
    finally:
        await upkeep.close()


async def publish(commands: Commands, dataset: str = "dem", **fields: Any) -> None:
    await commands.kit.publish(dataset, clearance="public")
    await commands.edit(dataset, **{"title": "Heights", **fields})
    await commands.run("metadata.publish_external", asset=dataset)


async def test_a_public_layer_is_written_into_the_external_database(with_external: Commands):
    await publish(with_external, keywords=["alps"], attribution="Survey")

    (row,) = await with_external.external_rows()
    (local,) = await with_external.catalog()
    layer = await with_external.kit.store.layer(local["asset_id"], "raster")
    assert (row["dataset_id"], row["layer"], row["title"], row["keywords"]) == ("dem", "raster", "Heights", ["alps"])
    assert row["bbox"] == local["bbox"] == [10.0, 46.0, 10.5, 46.5]
    assert "published_by" not in row
    assert layer.external == "published"


@pytest.mark.parametrize("clearance", ["ouo", None])
async def test_only_public_and_approved_data_may_be_published_externally(
    with_external: Commands, clearance: str | None
):
    if clearance:
        await with_external.kit.publish("dem", clearance=clearance)
    else:
        await with_external.kit.process(await with_external.kit.submit("dem"))

    with pytest.raises(Conflict) as refused:
        await with_external.run("metadata.publish_external", asset="dem")

    assert refused.value.code == ("layer.not-public" if clearance else "layer.not-published")
    assert await with_external.kit.rows(DUE) == []


@pytest.mark.parametrize("action", ["unpublish", "delete", "ouo", "uncleared", "metadata.unpublish"])
async def test_a_layer_that_is_withdrawn_is_removed_from_the_external_database(with_external: Commands, action: str):
    await publish(with_external)
    store = with_external.kit.store
    match action:
        case "unpublish":
            await unpublish(store, "dem", caller=BOB)
        case "delete":
            await delete(store, "dem", caller=BOB)
        case "ouo" | "uncleared":
            await clear(store, "dem", Clearance(action), caller=BOB)
        case _:
            await with_external.run(action, asset="dem")
    async with upkeep_of(with_external) as upkeep:
        assert await upkeep.publish_externally()
    again = await with_external.kit.rows(DUE)

    assert await with_external.external_rows() == []
    assert [(row["is_wanted"], row["is_due"]) for row in again] == [(False, False)]
    assert len(await with_external.catalog()) == (1 if action == "ouo" else 0)


async def test_the_external_database_gets_new_versions_and_published_edits(with_external: Commands):
    await publish(with_external)
    await with_external.edit(title="Better")
    await with_external.run("metadata.publish", asset="dem")
    await with_external.kit.publish("dem", clearance=None, version_label="2024", content=b"2024")
    async with upkeep_of(with_external) as upkeep:
        await upkeep.publish_externally()

    (row,) = await with_external.external_rows()
    assert (row["title"], row["version_ordinal"], row["bbox"][0]) == ("Better", 1, 11.0)


async def test_an_invalid_address_of_the_external_database_is_reported_with_the_name_of_its_setting():
    with pytest.raises(Unavailable) as refused:
        await ExternalCatalog("mysql://host/db").put("dem", "raster", 1, None)

    assert "EXTERNAL_DATABASE_URL is not the address of a database: it begins with mysql:" in refused.value.message


async def test_an_outage_is_reported_and_the_write_is_retried_later(
    catalog_database, external_database, tmp_path: Path
):
    async with opened(catalog_database, tmp_path) as kit:
        broken, working = Commands(kit, DOWN), Commands(kit, external_database)
        with pytest.raises(Unavailable) as refused:
            await publish(broken)
        (due,) = await kit.rows(DUE)
        async with upkeep_of(working) as upkeep:
            early = await upkeep.run_once()
            skipped = await kit.rows(DUE)
            await kit.execute("UPDATE dagapp.external_layers SET updated_at = updated_at - interval '1 minute'")
            await upkeep.publish_externally()
        published = await working.external_rows()
        withdrawn = await broken.run("metadata.unpublish", asset="dem")
        still = await working.external_rows()
        await kit.execute("UPDATE dagapp.external_layers SET updated_at = updated_at - interval '1 minute'")
        async with upkeep_of(working) as upkeep:
            await upkeep.publish_externally()
        rows_left = await working.external_rows()
        (after,) = await kit.rows(DUE)
        events = await kit.rows("SELECT * FROM dagapp.asset_events")

    assert refused.value.code == "external.unavailable"
    assert early
    assert (due["is_wanted"], due["is_due"], due["attempts"]) == (True, True, 1)
    assert [row["is_due"] for row in skipped] == [True]  # no retry before a delay
    assert [row["title"] for row in published] == [row["title"] for row in still] == ["Heights"]
    assert withdrawn.layer.external == "due"
    assert rows_left == []
    assert (after["is_due"], after["attempts"], after["error_message"]) == (False, 0, None)
    seen = f"{refused.value}{refused.value.facts}{due}{withdrawn}{events}"
    assert "canary" not in seen


async def test_a_delayed_writer_cannot_undo_a_later_change(with_external: Commands):
    await publish(with_external)
    external = external_layers(with_external.settings, with_external.kit.dsn)
    assert external is not None
    (before,) = await with_external.kit.rows("SELECT * FROM dagapp.external_layers")
    catalog = ExternalCatalog(with_external.external or "")
    await unpublish(with_external.kit.store, "dem", caller=BOB)
    await external.carry_out_all(10)

    late = await catalog.put("dem", "raster", before["generation"], None)

    assert late is False
    assert await with_external.external_rows() == []
    await external.close()


async def test_content_that_changed_during_the_write_is_written_again(with_external: Commands):
    await publish(with_external)
    external = external_layers(with_external.settings, with_external.kit.dsn)
    assert external is not None
    await with_external.edit(title="First")
    await with_external.run("metadata.publish", asset="dem")
    (due,) = await external.store.due(10)
    await with_external.edit(title="Second")
    await with_external.run("metadata.publish", asset="dem")

    await external.carry_out(due)
    still_due = await external.store.due(10)
    await external.carry_out_all(10)

    (row,) = await with_external.external_rows()
    assert len(still_due) == 1
    assert row["title"] == "Second"
    await external.close()


async def test_pgstac_of_the_external_database_gets_documents_with_public_urls(
    catalog_database, external_catalog, tmp_path: Path
):
    async with opened(catalog_database, tmp_path) as kit:
        commands = Commands(kit, external_catalog)
        await kit.publish("dem", tiles=2, clearance="public")
        await commands.edit(title="Heights")
        await commands.run("metadata.publish_external", asset="dem")
        collections = await commands.external_rows("SELECT content FROM pgstac.collections")
        items = await commands.external_rows("SELECT id, content FROM pgstac.items ORDER BY id")
        await commands.run("metadata.unpublish", asset="dem")
        left = await commands.external_rows("SELECT id FROM pgstac.collections UNION ALL SELECT id FROM pgstac.items")

    assert [row["content"]["title"] for row in collections] == ["Heights"]
    assert collections[0]["content"]["assets"]["mosaic"]["href"].startswith(f"{PUBLIC_URL}/files/silver/")
    assert [row["id"] for row in items] == ["dem-v0-t0", "dem-v0-t1"]
    assert all(row["content"]["assets"]["data"]["href"].startswith(f"{PUBLIC_URL}/files/") for row in items)
    assert left == []


async def test_a_collection_that_dagmaster_did_not_write_is_not_changed(
    catalog_database, external_catalog, tmp_path: Path
):
    async with opened(catalog_database, tmp_path) as kit:
        commands = Commands(kit, external_catalog)
        await commands.external_rows("""SELECT pgstac.create_collection('{"id": "dem", "title": "theirs"}')""")
        with pytest.raises(Conflict) as refused:
            await publish(commands)
        await unpublish(kit.store, "dem", caller=BOB)
        async with upkeep_of(commands) as upkeep:
            await upkeep.run_once()
        kept = await commands.external_rows("SELECT content ->> 'title' AS title FROM pgstac.collections")

    assert refused.value.code == "external.collection-taken"
    assert [row["title"] for row in kept] == ["theirs"]


async def test_the_database_of_an_installation_is_refused_as_the_external_one(commands: Commands):
    same = Commands(commands.kit, commands.kit.dsn)

    with pytest.raises(Conflict) as refused:
        await publish(same)

    assert refused.value.code == "external.is-installation"
    assert len(await commands.kit.items()) == 1


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({}, "external.not-configured"),
        ({"external_database_url": DOWN}, "external.no-public-url"),
    ],
)
async def test_the_error_for_missing_settings_names_them(commands: Commands, settings: dict[str, str], code: str):
    await commands.kit.publish("dem", clearance="public")
    commands.settings = Settings(**settings)

    with pytest.raises(InvalidRequest) as refused:
        await commands.run("metadata.publish_external", asset="dem")

    assert refused.value.code == code


async def test_the_api_shows_neither_the_url_of_the_external_database_nor_its_password(
    commands: Commands, tmp_path: Path
):
    await commands.kit.publish("dem", clearance="public")
    chosen = {"external_database_url": DOWN, "public_url": PUBLIC_URL, "storage_folder": tmp_path}
    async with api(commands.kit.dsn, **chosen) as client:
        response = await client.post(f"{V1}/commands/metadata.publish_external", json={"asset": "dem"})

    assert (response.status_code, response.json()["code"]) == (503, "external.unavailable")
    assert "canary" not in response.text
    assert "127.0.0.1" not in response.text
    assert "canary" not in repr(Settings(**chosen))


def test_every_statement_can_be_prepared_in_the_external_database(external_catalog: str):
    names = sorted(name for name in all_queries() if name.startswith("external_"))
    with psycopg.connect(external_catalog, autocommit=True) as connection:
        connection.execute(schema())
        connection.execute(schema())  # the second call changes nothing
        for name in names:
            connection.execute(f"PREPARE {name} AS {numbered(name)[0]}")
        prepared = connection.execute(
            "SELECT name, cardinality(parameter_types) FROM pg_prepared_statements"
        ).fetchall()

    assert dict(prepared) == {name: len(numbered(name)[1]) for name in names}
    assert len(names) >= 9


async def test_a_new_approval_or_clearance_does_not_publish_the_layer_again(with_external: Commands):
    await publish(with_external)
    await clear(with_external.kit.store, "dem", Clearance.OUO, caller=BOB)
    await clear(with_external.kit.store, "dem", Clearance.PUBLIC, caller=BOB)
    revised = await with_external.kit.submit("dem", content=b"better")
    await with_external.kit.process(revised)
    await approve(with_external.kit.store, "dem", 0, caller=BOB)
    async with upkeep_of(with_external) as upkeep:
        await upkeep.publish_externally()

    assert await with_external.external_rows() == []
