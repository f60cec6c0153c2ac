"""`verify-storage` compares the objects that the database names with those in folders, in Azure and in S3."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import orjson
import psycopg
import pytest
from click.testing import CliRunner
from psycopg.types.json import Jsonb

from dagmaster.assets.states import Clearance
from dagmaster.cli.main import cli
from dagmaster.database.maintenance.storage import _tables
from dagmaster.database.maintenance.storage import opened as opened_comparison
from dagmaster.database.queries import all_queries, numbered
from dagmaster.errors import NotAllowed
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.verify_storage import StorageReport, verify_storage
from dagmaster.storage import Folder, Location, Zone, open_storage
from dagmaster.storage.location import Edition, edition_named
from tests.external.kit import processed
from tests.operations.kit import BOB, Kit, opened

pytestmark = [pytest.mark.requirement("S2"), pytest.mark.timeout(120)]

NOW = timedelta(0)
JOB = UUID("01890000-0000-7000-8000-0000000000aa")


async def published(kit: Kit, dataset: str, *, clearance: str | None = "ouo") -> None:
    """A dataset of three tiles of 10 kB and a mosaic: processed, and approved if a clearance is given."""
    submitted = await processed(kit, dataset)
    await kit.execute(
        "UPDATE dagapp.stac_documents SET content = jsonb_set(content, '{assets,data,file:size}', '10000') "
        "WHERE dataset_id = %s AND document_id <> ''",
        dataset,
    )
    if clearance:
        await approve(kit.store, submitted.asset_id, 0, caller=BOB, clearance=Clearance(clearance))


def at(kit: Kit, dataset: str, name: str, zone: Zone = Zone.SILVER) -> Location:
    return kit.storage.location(Edition(dataset).cog(name), zone=zone)


def about(report: StorageReport, dataset: str) -> set[tuple[str, str, bool]]:
    """The findings about a dataset: code, name of the object, and whether it is served."""
    named = [each for each in report.findings if dataset in f"{each.path} {each.dataset_id}"]
    return {
        (each.code.value, (each.path or each.document_id or "").rpartition("/")[2], each.is_served) for each in named
    }


@pytest.fixture(params=["folder", "azurite", "s3_server"])
async def any_kit(request, catalog_database: str, tmp_path: Path) -> AsyncIterator[Kit]:
    async with opened(catalog_database, tmp_path) as kit:
        if request.param != "folder":
            kit.storage = open_storage(request.getfixturevalue(request.param).settings_for(tmp_path))
            kit.storage.create_containers()
        yield kit


async def test_missing_damaged_and_unreferenced_objects_are_reported_for_every_store(any_kit: Kit) -> None:
    kit, dataset = any_kit, f"verified-{uuid4().hex[:8]}"
    await published(kit, dataset)
    clean = await verify_storage(kit.dsn, kit.storage, reads_content=True, min_age=NOW)

    kit.storage.delete(at(kit, dataset, "x-t0.tif"))
    kit.storage.put(at(kit, dataset, "x-t1.tif"), b"cut off")
    kit.storage.put(at(kit, dataset, "x-t2.tif"), bytes(10_000))
    kit.storage.put(at(kit, dataset, "stray.tif"), b"stray")
    kit.storage.put(kit.storage.location(f"cogs/{dataset}-other/v0/r1/x.tif", zone=Zone.SILVER), b"x")
    kit.storage.put(kit.storage.location(f"{JOB}/{dataset}.tif", zone=Zone.SILVER), b"x")
    kit.storage.put(kit.storage.location(f"{dataset}-unused.tif"), b"x")
    quick = await verify_storage(kit.dsn, kit.storage, min_age=NOW)
    thorough = await verify_storage(kit.dsn, kit.storage, reads_content=True, min_age=NOW)

    assert about(clean, dataset) == set()
    assert (clean.served, clean.references, clean.objects_read) == (0, 5, 3)
    assert about(quick, dataset) == {
        ("missing", "x-t0.tif", True),
        ("wrong-size", "x-t1.tif", True),
        ("unreferenced", "stray.tif", False),
        ("unreferenced", "x.tif", False),
        ("unreferenced", f"{dataset}.tif", False),
        ("unreferenced", f"{dataset}-unused.tif", False),
    }
    assert quick.served == 2
    assert about(thorough, dataset) - about(quick, dataset) == {("wrong-checksum", "x-t2.tif", True)}
    assert thorough.served == 3
    (missing,) = [each for each in quick.findings if each.code == "missing"]
    assert (missing.dataset_id, missing.version_ordinal, missing.revision) == (dataset, 0, 1)
    assert (missing.document_id, missing.asset_key) == (f"{dataset}-v0-t0", "data")
    assert missing.message.endswith("(served) names it")


async def test_missing_objects_of_unserved_revisions_are_reported_and_not_counted_as_served(kit: Kit) -> None:
    await published(kit, "draft", clearance=None)
    kit.storage.delete(at(kit, "draft", "x-t0.tif"))
    kit.storage.delete(kit.storage.location("draft.tif"))

    report = await verify_storage(kit.dsn, kit.storage, min_age=NOW)

    assert about(report, "draft") == {("missing", "x-t0.tif", False), ("missing", "draft.tif", False)}
    assert report.served == 0
    assert not report.is_clean
    assert {each.kind for each in report.findings} == {"document", "source"}


async def test_new_objects_and_objects_of_running_jobs_are_not_reported(kit: Kit) -> None:
    submitted = await kit.submit("running")
    kit.storage.put(at(kit, "running", "x.tif"), b"x")
    kit.storage.put(kit.storage.location(f"{submitted.job_id}/part.tif", zone=Zone.SILVER), b"x")
    kit.storage.put(kit.storage.location("recipes/running/v0/r1/recipe.json", zone=Zone.SILVER), b"{}")
    running = await verify_storage(kit.dsn, kit.storage, min_age=NOW)

    kit.storage.put(kit.storage.location("stray.bin", zone=Zone.EXTERNAL), b"x")
    young = await verify_storage(kit.dsn, kit.storage)
    old = time.time() - 90_000
    os.utime(kit.storage.gdal_path(kit.storage.location("stray.bin", zone=Zone.EXTERNAL)), (old, old))
    grown = await verify_storage(kit.dsn, kit.storage)

    assert running.is_clean, running.findings
    assert young.is_clean
    assert [(each.code, each.zone, each.path) for each in grown.findings] == [
        ("unreferenced", "external", "external/stray.bin")
    ]
    assert "1 day old" in grown.findings[0].message


async def test_external_copies_are_compared_with_their_manifest(kit: Kit) -> None:
    await published(kit, "dem", clearance="public")
    outside = [at(kit, "dem", name, Zone.EXTERNAL) for name in ("x-t0.tif", "x-t1.tif")]
    for location in outside:
        kit.storage.put(location, b"copy")
    entries = [{"blob": each.blob, "size_bytes": 4, "sha256": "ab" * 32} for each in outside]
    manifest = kit.storage.location(Edition("dem").manifest(), zone=Zone.EXTERNAL)
    kit.storage.put(manifest, orjson.dumps({"objects": entries}))
    await kit.execute(
        "UPDATE dagapp.asset_revisions SET external_copies = 'all', export_due_at = NULL, outputs = outputs || %s",
        Jsonb({"external_manifest_path": manifest.path}),
    )
    clean = await verify_storage(kit.dsn, kit.storage, min_age=NOW)

    kit.storage.delete(outside[0])
    kit.storage.put(at(kit, "dem", "left.tif", Zone.EXTERNAL), b"left")
    damaged = await verify_storage(kit.dsn, kit.storage, min_age=NOW)
    kit.storage.delete(manifest)
    lost = await verify_storage(kit.dsn, kit.storage, min_age=NOW)
    unreadable = []
    for content in (b'{"objects": [{"blob', b'{"objects": [1]}', b'{"objects": [{"blob": "x", "size_bytes": "y"}]}'):
        kit.storage.put(manifest, content)
        unreadable.append(await verify_storage(kit.dsn, kit.storage, min_age=NOW))
        kit.storage.delete(manifest)

    assert clean.is_clean, clean.findings
    assert about(damaged, "dem") == {("missing", "x-t0.tif", True), ("unreferenced", "left.tif", False)}
    assert about(lost, "dem") == {("missing", "manifest.json", True)}
    # Copies that a damaged manifest does not name are published, so they must not be reported as leftovers.
    assert [about(each, "dem") for each in unreadable] == [{("unreadable", "manifest.json", True)}] * 3


async def test_a_catalogue_that_differs_from_the_documents_is_reported(kit: Kit) -> None:
    await published(kit, "dem")
    await published(kit, "scene")
    await kit.execute("DELETE FROM pgstac.items WHERE id = 'dem-v0-t0'")
    await kit.execute(
        "UPDATE pgstac.items SET content = jsonb_set(content, '{assets,data,href}', '\"/files/silver/silver/y.tif\"') "
        "WHERE id = 'dem-v0-t1'"
    )
    await kit.execute("DELETE FROM dagapp.stac_documents WHERE dataset_id = 'scene'")

    report = await verify_storage(kit.dsn, kit.storage)

    assert {each.message for each in report.findings} == {
        "'dem' version 0, revision 1, item 'dem-v0-t0': the catalogue does not have the item",
        "'dem' version 0, revision 1, item 'dem-v0-t1': the item in the catalogue names other files",
        "'scene' version 0, revision 1: the revision has no documents",
        *(f"'scene', item 'scene-v0-t{number}': the item belongs to no published revision" for number in range(3)),
    }
    assert report.served == 6


async def test_expired_uploads_are_reported(kit: Kit) -> None:
    writer = kit.storage.uploads.open(uuid4())
    writer.write(b"half")
    writer.close()
    expired, finished = uuid4(), uuid4()
    insert = (
        "INSERT INTO dagapp.uploads (upload_id, platform_id, container, blob, size_bytes, created_by, expires_at, "
        "finished_at, sha256, etag) VALUES (%s, 'local', 'bronze', %s, 10, 'ada', %s, %s, %s, %s)"
    )
    await kit.execute(insert, expired, "a.tif", "2026-01-01T00:00:00Z", None, None, None)
    await kit.execute(insert, finished, "b.tif", None, "2026-01-01T00:00:00Z", "ab" * 32, "etag")

    report = await verify_storage(kit.dsn, kit.storage, min_age=NOW)

    assert {(each.code.value, each.path, each.size_bytes) for each in report.findings} == {
        ("upload", None, 4),
        ("upload", "bronze/a.tif", None),
        ("missing", "bronze/b.tif", None),
    }


async def test_more_findings_than_the_limit_are_counted(kit: Kit) -> None:
    await published(kit, "dem")
    for number in range(3):
        kit.storage.delete(at(kit, "dem", f"x-t{number}.tif"))
        kit.storage.put(kit.storage.location(f"unused-{number}.tif"), b"x" * (number + 1))

    report = await verify_storage(kit.dsn, kit.storage, min_age=NOW, limit=1)

    assert (report.counts["missing"], report.counts["unreferenced"], len(report.findings)) == (3, 3, 2)
    assert (report.served, report.unreferenced_bytes) == (3, 6)
    assert report.findings[1].path == "bronze/unused-2.tif", "the largest first"


async def test_more_expired_uploads_than_the_limit_are_counted(kit: Kit) -> None:
    for number in range(3):
        await kit.execute(
            "INSERT INTO dagapp.uploads (upload_id, platform_id, container, blob, size_bytes, created_by, expires_at) "
            "VALUES (%s, 'local', 'bronze', %s, 10, 'ada', '2026-01-01T00:00:00Z')",
            uuid4(),
            f"{number}.tif",
        )

    report = await verify_storage(kit.dsn, kit.storage, limit=1)

    assert (report.counts["upload"], len(report.findings)) == (3, 1)


async def test_an_object_that_is_written_or_deleted_during_the_run_is_not_reported(kit: Kit, monkeypatch) -> None:
    await published(kit, "dem")
    kit.storage.put(kit.storage.location("unused.tif"), b"x")
    listed = {zone: list(kit.storage.list(folder_of(kit, zone))) for zone in Zone}
    late = [each for each in listed[Zone.SILVER] if not each.location.name.endswith("t0.tif")]
    monkeypatch.setattr(kit.storage, "list", lambda folder: iter({**listed, Zone.SILVER: late}[folder.zone]))
    kit.storage.delete(kit.storage.location("unused.tif"))

    report = await verify_storage(kit.dsn, kit.storage, min_age=NOW)

    assert report.is_clean, report.findings
    assert (report.served, report.unreferenced_bytes) == (0, 0)


def folder_of(kit: Kit, zone: Zone) -> Folder:
    return Folder(zone, kit.storage.containers[zone])


async def test_referenced_objects_in_other_containers_are_checked(kit: Kit) -> None:
    await published(kit, "dem")
    await kit.execute(
        "UPDATE dagapp.asset_revisions SET source = %s, source_size = 5",
        Jsonb({"container": "archive", "blob": "a.tif"}),
    )
    missing = await verify_storage(kit.dsn, kit.storage)
    kit.storage.put(Location(Zone.BRONZE, "archive", "a.tif"), b"12345")
    kit.storage.put(Location(Zone.BRONZE, "archive", "b.tif"), b"of someone else")
    report = await verify_storage(kit.dsn, kit.storage, min_age=NOW)

    assert about(missing, "archive") == {("missing", "a.tif", False)}
    assert about(report, "archive") == set()


async def test_the_comparison_cannot_write_to_the_database(kit: Kit) -> None:
    async with opened_comparison(kit.dsn) as comparison:
        with pytest.raises((psycopg.errors.ReadOnlySqlTransaction, NotAllowed)):
            await comparison._connection.execute("DELETE FROM dagapp.uploads")


async def test_the_command_exits_with_1_if_something_served_is_missing(kit: Kit, tmp_path: Path) -> None:
    await published(kit, "dem")
    environment = {"DATABASE_URL": kit.dsn, "STORAGE_FOLDER": str(tmp_path), "DAGMASTER_DATA": str(tmp_path / "data")}

    def run(*arguments: str):
        return CliRunner().invoke(cli, ["verify-storage", *arguments], env=environment, standalone_mode=False)

    clean = await asyncio.to_thread(run)
    kit.storage.delete(at(kit, "dem", "x-t0.tif"))
    broken = await asyncio.to_thread(run, "--json", "--checksums")

    assert (clean.return_value, "clean" in clean.output) == (0, True), clean.output
    report = orjson.loads(broken.output)
    assert broken.return_value == 1
    assert (report["served"], report["counts"]["missing"], report["objects_read"]) == (1, 1, 2)
    assert report["findings"][0]["path"] == "silver/cogs/dem/v0/r1/x-t0.tif"


@pytest.mark.requirement("D1")
def test_every_statement_can_be_prepared_in_the_deployed_schema(cluster, catalog_template) -> None:
    names = [name for name in all_queries() if name.startswith("storage_")]
    with psycopg.connect(cluster.dsn_of(catalog_template), autocommit=True) as connection:
        connection.execute(_tables())
        for name in names:
            text, parameters = numbered(name)
            connection.execute(f"PREPARE {name} AS {text}")
            types = connection.execute(
                "SELECT parameter_types FROM pg_prepared_statements WHERE name = %s", [name]
            ).fetchone()
            assert len(types[0]) == len(parameters), name

    assert len(names) == 11


@pytest.mark.parametrize(
    ("blob", "expected"),
    [
        ("cogs/dem/v0/r1/x.tif", ("cogs", Edition("dem", 0, 1))),
        ("manifests/dem/v12/r3/a/b.json", ("manifests", Edition("dem", 12, 3))),
        ("cogs/dem/v0/r0/x.tif", (None, None)),
        ("cogs/dem/v01/r1/x.tif", (None, None)),
        ("cogs/DEM/v0/r1/x.tif", (None, None)),
        ("cogs/dem/v0/r\u0661/x.tif", (None, None)),
        ("cogs/dem/v0/r1/", (None, None)),
        ("other/dem/v0/r1/x.tif", (None, None)),
    ],
)
def test_the_edition_of_an_object_is_read_from_its_name(blob, expected) -> None:
    assert edition_named(blob) == expected
