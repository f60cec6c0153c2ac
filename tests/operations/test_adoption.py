"""Datasets of earlier releases become approved versions of the platform `local`."""

import asyncio
import json
import subprocess
import sys
from typing import Any
from uuid import UUID

import pytest

from dagmaster import faults
from dagmaster.assets.identity import asset_id_of
from dagmaster.database.assets.adopt import AdoptedAssets
from dagmaster.database.assets.documents import RevisionDocuments
from dagmaster.database.connect import pool
from dagmaster.dataset_ids import RevisionKey
from dagmaster.errors import UnfitData
from dagmaster.operations.assets.adopt import adopt_datasets
from tests.operations.kit import Kit, collection, item

pytestmark = pytest.mark.requirement("A2", "A3")

SERVER = "https://maps.example.org/platform"
ELSEWHERE = "https://other.example.org/stac/collections/dem"


def as_stored_before(document: dict[str, Any]) -> str:
    """The document as an earlier release stored it: with absolute URLs, and with a link to another server."""
    links = [
        {"rel": "self", "href": f"/stac/collections/{document['id']}"},
        {"rel": "derived_from", "href": ELSEWHERE},
    ]
    text = json.dumps({**document, "links": links if document["type"] == "Collection" else document["links"]})
    return text.replace('"/stac/', f'"{SERVER}/stac/').replace('"/files/', f'"{SERVER}/files/')


async def published(kit: Kit, dataset: str = "dem", editions: tuple[tuple[int, int], ...] = ((0, 1),)) -> None:
    """A dataset of an earlier release, in pgSTAC only."""
    ordinal, revision = editions[-1]
    newest = collection(dataset, ordinal, revision, is_tiled=False)
    await kit.execute("SELECT pgstac.create_collection(%s::jsonb)", as_stored_before(newest))
    for ordinal, revision in editions:
        await kit.execute("SELECT pgstac.create_item(%s::jsonb)", as_stored_before(item(dataset, ordinal, revision)))


async def adopted(kit: Kit) -> list[str]:
    async with AdoptedAssets(kit.dsn) as store:
        return await adopt_datasets(store)


async def test_a_published_dataset_becomes_an_asset_with_approved_versions(kit: Kit):
    await published(kit, editions=((0, 1), (1, 3)))

    assert await adopted(kit) == ["dem"]
    assert await adopted(kit) == []

    asset = await kit.store.asset("dem")
    assert asset.asset_id == asset_id_of("local", {"dataset": "dem"})
    assert (asset.platform_id, asset.clearance_state, asset.exposure) == ("local", "ouo", "all-versions")
    assert asset.latest_approved_version_ordinal == 1
    assert [(v.version_ordinal, v.version_label, v.approved_revision, v.is_served) for v in asset.versions] == [
        (0, "0", 1, True),
        (1, "1", 3, True),
    ]
    assert await kit.items() == {"dem-v0": (0, 1), "dem-v1": (1, 3)}
    (event,) = await kit.store.history(asset.asset_id, limit=10)
    assert (event.action, event.actor) == ("adopted", "dagmaster")


async def test_urls_of_this_server_become_paths_and_other_urls_stay(kit: Kit):
    await published(kit)

    await adopted(kit)

    documents = await kit.rows("SELECT document_id, content FROM dagapp.stac_documents ORDER BY document_id")
    texts = [json.dumps(row["content"]) for row in documents]
    assert [row["document_id"] for row in documents] == ["", "dem-v0"]
    assert SERVER not in "".join(texts)
    assert ELSEWHERE in texts[0]
    assert documents[1]["content"]["assets"]["data"]["href"].startswith("/files/silver/silver/cogs/dem/v0/r1/")
    assert documents[1]["content"]["assets"]["data"]["type"] == "image/tiff"  # pgSTAC stores it with the collection


async def test_an_adopted_dataset_is_submitted_again_as_a_new_revision(kit: Kit):
    await published(kit)
    await adopted(kit)

    again = await kit.submit("dem", content=b"new pixels")

    assert (again.outcome, again.version_ordinal, again.revision) == ("new_revision", 0, 2)


async def test_collections_of_other_programs_and_known_datasets_are_not_changed(kit: Kit):
    await kit.publish("known")
    other = {**collection("other", 0, 1, is_tiled=False)}
    del other["dagmaster:version_ordinal"]
    await kit.execute("SELECT pgstac.create_collection(%s::jsonb)", json.dumps(other))

    assert await adopted(kit) == []


async def posted_without_an_asset(kit: Kit, dataset: str, *, days_ago: int = 0) -> UUID:
    """A completed job that has a dataset as input, and belongs to no asset."""
    submitted = await kit.submit("other")
    await kit.execute("ALTER TABLE dagapp.dag_jobs DISABLE TRIGGER ALL")
    await kit.execute(
        "UPDATE dagapp.dag_jobs SET asset_id = NULL, status = 'completed', input_params = %s::jsonb, "
        "created_at = created_at - make_interval(days => %s) WHERE job_id = %s",
        json.dumps({"dataset_id": dataset}),
        days_ago,
        submitted.job_id,
    )
    await kit.execute("ALTER TABLE dagapp.dag_jobs ENABLE TRIGGER ALL")
    assert submitted.job_id is not None
    return submitted.job_id


async def test_a_job_of_this_release_is_never_adopted(kit: Kit):
    await kit.write_documents("wave", 0, 1)
    job_id = await posted_without_an_asset(kit, "wave")

    assert await adopted(kit) == []

    async with pool(kit.dsn, "handlers", 0, 1) as connections:
        documents = RevisionDocuments(connections, RevisionKey("wave"), job_id)
        with pytest.raises(UnfitData) as refused:
            await documents.put_items([item("wave", 0, 1)])
    assert refused.value.code == "revision.other-job"


async def test_a_job_that_an_earlier_release_started_is_adopted_after_its_end(kit: Kit):
    await kit.write_documents("wave", 0, 1)
    await kit.write_documents("job-01a1e87b-a89a-78fc-9851-e014e1dedede", 0, 1)
    before = await adopted(kit)
    job_id = await posted_without_an_asset(kit, "wave", days_ago=1)
    async with pool(kit.dsn, "handlers", 0, 1) as connections:
        await RevisionDocuments(connections, RevisionKey("wave"), job_id).put_items([item("wave", 0, 1)])

    assert before == []
    assert await adopted(kit) == ["wave"]
    assert await kit.items("wave") == {"wave-v0": (0, 1)}


@pytest.mark.parametrize("point", [*faults.around("adopt_dataset"), *faults.around("prepare_catalogue")])
async def test_an_adoption_that_dies_is_finished_by_the_next_one(kit: Kit, point: str):
    await published(kit, editions=((0, 1), (1, 1)))
    program = f"""
import asyncio
from dagmaster import faults
from dagmaster.operations.schema import adopt_all
faults.arm({point!r})
adopt_all({kit.dsn!r})
"""

    dying = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], check=False)
    after = await adopted(kit)

    assert dying.returncode == 137
    assert after == ([] if point == "adopt_dataset.after-commit" else ["dem"])
    assert await kit.items() == {"dem-v0": (0, 1), "dem-v1": (1, 1)}
    assert len((await kit.store.asset("dem")).versions) == 2


async def test_concurrent_adoptions_adopt_each_dataset_once(kit: Kit):
    await published(kit)

    results = await asyncio.gather(adopted(kit), adopted(kit))

    assert sorted(results) == [[], ["dem"]]
