"""The documents of revisions: which are refused, how they are written, and what a job inherits from earlier ones."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb
from tests.database.test_catalog import an_item

from dagmaster.database.assets import documents
from dagmaster.database.assets.documents import read_earlier, require_storable
from dagmaster.dataset_ids import RevisionKey
from dagmaster.errors import UnfitData

pytestmark = pytest.mark.requirement("C1")

ASSET_ID = "cd" * 16


class Asset:
    """An asset with revisions in given states, and their documents."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        connection.execute(
            "INSERT INTO dagapp.geospatial_assets (asset_id, platform_id, platform_refs, dataset_id) "
            "VALUES (%s, 'local', '{}', 'dem')",
            (ASSET_ID,),
        )

    def revision(self, ordinal: int, revision: int, *, state: str = "completed", **items: dict[str, Any]) -> None:
        """`items` has the properties of each item by the name of its part."""
        self.connection.execute(
            "INSERT INTO dagapp.asset_versions "
            "(asset_id, version_ordinal, version_label, platform_refs, revision) VALUES (%s, %s, %s, '{}', %s) "
            "ON CONFLICT (asset_id, version_ordinal) DO UPDATE SET revision = excluded.revision",
            (ASSET_ID, ordinal, str(ordinal), revision),
        )
        self.connection.execute(
            "INSERT INTO dagapp.asset_revisions (asset_id, version_ordinal, revision, processing_state, job_id) "
            "VALUES (%s, %s, %s, %s, %s)",
            (ASSET_ID, ordinal, revision, state, uuid4()),
        )
        for part, properties in items.items():
            self.connection.execute(
                "INSERT INTO dagapp.stac_documents (dataset_id, version_ordinal, revision, document_id, content) "
                "VALUES ('dem', %s, %s, %s, %s)",
                (ordinal, revision, f"dem-v{ordinal}-{part}", Jsonb({"properties": properties})),
            )

    def earlier(self, ordinal: int, revision: int) -> Any:
        return read_earlier(self.connection, RevisionKey("dem", ordinal, revision))


@pytest.fixture
def asset(database):
    with psycopg.connect(database, autocommit=True) as connection:
        yield Asset(connection)


def test_the_first_revision_of_a_dataset_inherits_nothing(asset):
    asset.revision(0, 1, state="processing", a={"title": "own"})

    assert asset.earlier(0, 1) is None
    assert read_earlier(asset.connection, RevisionKey("other", 0, 1)) is None


def test_a_revision_inherits_from_the_newest_completed_one_of_its_version(asset):
    asset.revision(0, 1, a={"title": "one", "created": "2024-01-01T00:00:00Z"})
    asset.revision(0, 2, a={"title": "two", "created": "2024-01-02T00:00:00Z", "renders": {"default": {}}})
    asset.revision(0, 3, state="failed", a={"title": "three"})
    asset.revision(0, 4, state="processing")
    asset.revision(1, 1, a={"title": "other version"})

    inherited = asset.earlier(0, 4)

    assert (inherited.item_id, inherited.ordinal, inherited.newest) == ("dem-v0-a", 0, 2)
    assert inherited.properties == {"title": "two", "created": "2024-01-02T00:00:00Z"}, "renders are not inherited"
    assert (inherited.created, inherited.times) == ("2024-01-02T00:00:00Z", {})


def test_a_new_version_inherits_from_the_newest_other_version(asset):
    asset.revision(0, 1, a={"title": "one", "created": "2024-01-01T00:00:00Z"})
    asset.revision(1, 1, a={"title": "two", "created": "2024-01-02T00:00:00Z"})
    asset.revision(2, 1, state="processing")

    inherited = asset.earlier(2, 1)

    assert (inherited.ordinal, inherited.properties["title"]) == (1, "two")
    assert (inherited.newest, inherited.created, inherited.times) == (None, None, {}), (
        "these belong to one version only"
    )


def test_a_completed_revision_without_documents_is_skipped(asset):
    asset.revision(0, 1, a={"title": "one"})
    asset.revision(0, 2)

    assert asset.earlier(0, 3).properties["title"] == "one"


def test_a_superseded_revision_knows_the_newest_revision(asset):
    asset.revision(0, 1, state="failed", a={"title": "one"})
    asset.revision(0, 2, a={"title": "two"})

    assert asset.earlier(0, 1).newest == 2


def test_the_times_of_items_are_read_if_they_differ(asset):
    common = {"start_datetime": None, "end_datetime": None, "dagmaster:datetime_basis": "given"}
    asset.revision(
        0,
        1,
        a={"datetime": "2024-01-01T00:00:00Z", "created": "2025-01-02T00:00:00Z", **common},
        b={"datetime": "2024-02-01T00:00:00Z", "created": "2025-01-01T00:00:00Z", **common},
    )

    inherited = asset.earlier(0, 2)

    assert inherited.created == "2025-01-01T00:00:00Z", "the times of the first item"
    assert inherited.times == {
        "dem-v0-a": {"datetime": "2024-01-01T00:00:00Z", **common},
        "dem-v0-b": {"datetime": "2024-02-01T00:00:00Z", **common},
    }


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([{}, {}], "catalog.duplicate-item"),
        ([{"geometry": None}], "catalog.bad-item"),
        ([{"id": ""}], "catalog.bad-item"),
        ([{"id": 7}], "catalog.bad-item"),
        ([{"properties": None}], "catalog.bad-item"),
        ([{"properties": {"datetime": None}}], "catalog.bad-item"),
        ([{"properties": {"datetime": "yesterday-ish"}}], "catalog.bad-item"),
        ([{"properties": {"datetime": "2024-01-01T00:00:00"}}], "catalog.bad-item"),
        (
            [{"properties": {"start_datetime": "2024-01-02T00:00:00Z", "end_datetime": "2024-01-01T00:00:00Z"}}],
            "catalog.bad-item",
        ),
    ],
    ids=str,
)
def test_items_that_pgstac_would_refuse_or_leave_out_are_refused_before_they_are_stored(changes, code):
    with pytest.raises(UnfitData) as refused:
        require_storable([an_item("a") | change for change in changes])

    assert refused.value.code == code


def test_batches_are_limited_in_number_and_size(monkeypatch):
    given = [(str(n), {"id": str(n), "x": "y" * 100}) for n in range(10)]

    def sizes(**limits: int) -> list[int]:
        for name, limit in limits.items():
            monkeypatch.setattr(documents, name, limit)
        return [len(batch) for batch in documents._batches(given)]

    assert sizes() == [10]
    assert sizes(BATCH_ITEMS=4) == [4, 4, 2]
    assert sizes(BATCH_BYTES=350) == [2, 2, 2, 2, 2]
    assert sizes(BATCH_BYTES=50) == [1] * 10
