"""Many items: simultaneous tasks that write documents, and simultaneous reviews that publish them, do not time out.

Full sizes run with `--slow`: 50 writers of 1,000 items each, 20 approvals, and an edition of 10,000 items.
"""

import asyncio
from typing import Any

import pytest

from dagmaster.assets.states import Clearance
from dagmaster.database.assets.documents import RevisionDocuments
from dagmaster.database.catalog import pgstac
from dagmaster.database.connect import pool
from dagmaster.dataset_ids import RevisionKey
from dagmaster.operations.assets.approve import approve
from tests.operations.kit import BOB, Kit, collection, item

pytestmark = pytest.mark.requirement("C1")

BANDS = [{"name": f"b{band}", "statistics": {"mean": band / 7, "histogram": list(range(256))}} for band in range(4)]


def items_of(key: RevisionKey, count: int, prefix: str = "t", **asset: Any) -> list[dict[str, Any]]:
    items = [item(key.dataset_id, key.ordinal, key.revision, f"-{prefix}{number}") for number in range(count)]
    for each in items:
        each["assets"]["data"] |= asset
    return items


async def process(kit: Kit, dataset_id: str, count: int, **asset: Any) -> None:
    """Submit a dataset, and write its documents as the job does."""
    submitted = await kit.submit(dataset_id)
    key = RevisionKey(dataset_id)
    async with pool(kit.dsn, "handlers", 0, 4) as database:
        documents = RevisionDocuments(database, key, submitted.job_id)
        await documents.put_collection(collection(dataset_id, 0, 1, is_tiled=True))
        await documents.put_items(items_of(key, count, **asset))
    await kit.end_job(submitted.job_id)


def approving(kit: Kit, dataset_id: str) -> Any:
    return approve(kit.store, dataset_id, 0, caller=BOB, clearance=Clearance.OUO)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
async def test_fifty_writers_of_documents_do_not_fail(kit: Kit, count: int):
    """The tasks of one job write items of one revision, and all of them also write one common item."""
    submitted = await kit.submit("dem")
    key = RevisionKey("dem")
    async with pool(kit.dsn, "handlers", 0, 10) as database:
        documents = RevisionDocuments(database, key, submitted.job_id)
        shared = items_of(key, 1, "shared")

        written = await asyncio.gather(
            *(documents.put_items(shared + items_of(key, count - 1, f"w{writer}-")) for writer in range(50))
        )

    assert written == [count] * 50
    (stored,) = await kit.rows("SELECT count(*) AS items FROM dagapp.stac_documents WHERE document_id <> ''")
    assert stored["items"] == 50 * (count - 1) + 1


@pytest.mark.parametrize(("assets", "count"), [(8, 200), pytest.param(20, 1000, marks=pytest.mark.slow)])
async def test_simultaneous_approvals_of_new_datasets_need_no_retry(kit: Kit, assets: int, count: int):
    """Each needs a partition, and so a lock on the table of all items, which the others use. Without an order among
    them the transactions were repeated until they failed after 30 seconds."""
    names = [f"dem{number}" for number in range(assets)]
    for name in names:
        await process(kit, name, count)
    kit.store.retry_seconds = 0

    await asyncio.gather(*(approving(kit, name) for name in names))

    assert [len(await kit.items(name)) for name in names] == [count] * assets


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_an_edition_of_many_items_is_published_in_a_fraction_of_the_time_limit(
    kit: Kit, count: int, monkeypatch: pytest.MonkeyPatch
):
    """With items of 6 kB. A review is one transaction, so that its statements are not divided."""
    await process(kit, "dem", count, bands=BANDS)
    monkeypatch.setattr(pgstac, "STATEMENT_SECONDS", pgstac.STATEMENT_SECONDS / 8)
    kit.store.retry_seconds = 0

    await approving(kit, "dem")

    assert len(await kit.items("dem")) == count
