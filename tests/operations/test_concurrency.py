"""Simultaneous submissions and reviews of one asset: one succeeds, the others see its result, none is incomplete."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagmaster.assets import rules
from dagmaster.assets.rules import SubmittedSource
from dagmaster.assets.states import AssetState, Clearance, Exposure, ProcessingState, SourceIdentity
from dagmaster.database.assets.adopt import AdoptedAssets
from dagmaster.database.maintenance.assets import PostgresAssetUpkeep
from dagmaster.errors import Conflict, DagmasterError
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.clear import clear
from dagmaster.operations.assets.delete import delete
from dagmaster.operations.assets.expose import expose
from dagmaster.operations.assets.reject import reject
from dagmaster.operations.assets.unpublish import unpublish
from dagmaster.orchestrator.asset_upkeep import AssetUpkeep
from dagmaster.settings import Settings
from dagmaster.storage import Zone
from dagmaster.storage.location import Edition
from tests.assets.processing import with_processing
from tests.operations.kit import BOB, Kit

pytestmark = pytest.mark.requirement("A4", "A5")

AT_ONCE = 6


async def settled(*calls: Awaitable[Any]) -> Counter[str]:
    """The number of times that each outcome or error code occurred."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, DagmasterError):
            raise result
    return Counter(
        result.code if isinstance(result, DagmasterError) else getattr(result, "outcome", "done") for result in results
    )


async def check_consistency(kit: Kit, dataset_id: str = "dem") -> None:
    """Check that the rows are consistent with each other, and the catalogue with the rows."""
    asset = await kit.store.state(dataset_id)
    info = await kit.store.asset(dataset_id)
    assert asset is not None
    assert info.latest_approved_version_ordinal == asset.state.latest
    assert set((await kit.items(dataset_id)).values()) == set(asset.state.published)
    for version in info.versions:
        newest = version.revisions[0]
        assert newest.revision == version.revision == len(version.revisions)
        assert newest.job_id == version.current_job_id
        assert newest.processing_state == version.processing_state
    jobs = await kit.rows("SELECT job_id FROM dagapp.dag_jobs WHERE asset_id = %s", info.asset_id)
    revisions = [revision.job_id for version in info.versions for revision in version.revisions]
    assert sorted(job["job_id"] for job in jobs) == sorted(revisions)


async def test_only_one_of_simultaneous_first_submissions_creates_the_asset(kit: Kit):
    kit.put("dem.tif", b"pixels")

    outcomes = await settled(*(kit.submit() for _ in range(AT_ONCE)))

    assert outcomes == {"new_asset": 1, "already_processing": AT_ONCE - 1}
    await check_consistency(kit)


async def test_simultaneous_submissions_of_different_sources_become_consecutive_revisions(kit: Kit):
    outcomes = await settled(*(kit.submit(blob=f"{n}.tif", content=b"x" * n) for n in range(1, AT_ONCE + 1)))

    assert outcomes == {"new_asset": 1, "new_revision": AT_ONCE - 1}
    await check_consistency(kit)
    unfinished = await kit.rows("SELECT 1 FROM dagapp.dag_jobs WHERE cancel_requested_at IS NULL")
    assert len(unfinished) == 1


async def test_only_one_of_simultaneous_submissions_creates_a_new_version(kit: Kit):
    await kit.publish(version_label="0")

    outcomes = await settled(
        *(kit.submit(version_label=str(n), blob=f"{n}.tif", content=b"x" * n) for n in range(1, AT_ONCE + 1))
    )

    assert outcomes == {"new_version": 1, "version.unresolved": AT_ONCE - 1}
    await check_consistency(kit)


async def test_simultaneous_copies_of_one_request_get_the_same_response(kit: Kit):
    kit.put("dem.tif", b"pixels")

    results = await asyncio.gather(*(kit.submit(request_id="r-1") for _ in range(AT_ONCE)))

    assert len({result.model_dump_json() for result in results}) == 1
    await check_consistency(kit)


async def test_only_one_of_simultaneous_approvals_succeeds(kit: Kit):
    await kit.process(await kit.submit(), tiles=5)

    outcomes = await settled(
        *(approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO) for _ in range(AT_ONCE))
    )

    assert outcomes == {"done": 1, "version.already-approved": AT_ONCE - 1}
    await check_consistency(kit)
    assert [event.action for event in await kit.store.history((await kit.store.asset("dem")).asset_id, limit=9)] == [
        "approved",
        "processed",
        "submitted",
    ]


@pytest.mark.parametrize("attempt", range(4))
async def test_an_approval_and_a_new_submission_exclude_each_other(kit: Kit, attempt: int):
    await kit.process(await kit.submit())

    outcomes = await settled(
        approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO),
        kit.submit(blob="other.tif", content=b"other"),
    )

    assert outcomes in ({"done": 1, "new_revision": 1}, {"version.processing": 1, "new_revision": 1})
    await check_consistency(kit)
    served = (await kit.store.state("dem")).state.version(0).approved_revision
    assert served == (1 if outcomes["done"] else None)


@pytest.mark.parametrize("attempt", range(4))
async def test_an_approval_and_a_clearance_exclude_each_other(kit: Kit, attempt: int):
    await kit.process(await kit.submit())

    outcomes = await settled(
        approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO),
        clear(kit.store, "dem", Clearance.PUBLIC, caller=BOB),
    )

    assert outcomes in ({"done": 2}, {"done": 1, "clearance.differs": 1})
    await check_consistency(kit)
    (row,) = await kit.rows(
        "SELECT export_due_at IS NOT NULL AS is_due, approved_revision FROM dagapp.asset_revisions "
        "JOIN dagapp.asset_versions USING (asset_id, version_ordinal)"
    )
    assert row["is_due"] == (row["approved_revision"] is not None)


@pytest.mark.parametrize("attempt", range(4))
async def test_after_simultaneous_changes_of_the_clearance_the_last_one_applies_to_access_and_exports(
    kit: Kit, attempt: int
):
    await kit.publish()
    await clear(kit.store, "dem", Clearance.UNCLEARED, caller=BOB)

    outcomes = await settled(
        clear(kit.store, "dem", Clearance.OUO, caller=BOB),
        clear(kit.store, "dem", Clearance.PUBLIC, caller=BOB),
    )

    assert outcomes == {"done": 2}
    await check_consistency(kit)
    asset = await kit.store.asset("dem")
    newest, *_ = await kit.store.history(asset.asset_id, limit=1)
    assert (newest.action, newest.detail["clearance"]) == ("cleared", asset.clearance_state)
    await check_due_exports(kit)


@pytest.mark.parametrize("attempt", range(4))
async def test_only_one_of_simultaneous_equal_changes_of_the_clearance_succeeds(kit: Kit, attempt: int):
    await kit.publish()

    outcomes = await settled(*(clear(kit.store, "dem", Clearance.PUBLIC, caller=BOB) for _ in range(AT_ONCE)))

    assert outcomes == {"done": 1, "clearance.unchanged": AT_ONCE - 1}
    await check_consistency(kit)
    await check_due_exports(kit)


@pytest.mark.parametrize("ordinal", [0, None])
@pytest.mark.parametrize("attempt", range(3))
async def test_a_clearance_and_a_deletion_exclude_each_other(kit: Kit, attempt: int, ordinal: int | None):
    await kit.publish()

    outcomes = await settled(
        clear(kit.store, "dem", Clearance.PUBLIC, caller=BOB),
        delete(kit.store, "dem", ordinal, caller=BOB),
    )

    assert outcomes in ({"done": 2}, {"done": 1, "asset.deleted": 1})
    await check_consistency(kit)
    asset = await kit.store.asset("dem")
    assert await kit.items() == {}
    assert asset.clearance_state == ("uncleared" if ordinal is None else "public")
    await check_due_exports(kit)


async def check_due_exports(kit: Kit) -> None:
    """Check that an export is due if, and only if, the asset is public and approved."""
    asset = await kit.store.asset("dem")
    dues = await kit.rows("SELECT export_due_at IS NOT NULL AS is_due FROM dagapp.asset_revisions")
    is_public = asset.clearance_state == "public" and asset.latest_approved_version_ordinal is not None
    assert [row["is_due"] for row in dues] == [is_public]


@pytest.mark.parametrize("attempt", range(6))
async def test_a_purge_and_an_approval_of_a_revision_exclude_each_other(kit: Kit, attempt: int):
    """A rejected revision can be approved until its purge begins; an approved revision is never purged."""
    await kit.process(await kit.submit())
    await reject(kit.store, "dem", 0, caller=BOB, reason="blurred")
    cog = kit.storage.location(Edition("dem").cog("x.tif"), zone=Zone.SILVER)
    kit.storage.put(cog, b"pixels")
    await kit.execute("UPDATE dagapp.asset_revisions SET reviewed_at = reviewed_at - interval '2 days'")
    store, assets = PostgresAssetUpkeep(kit.dsn), AdoptedAssets(kit.dsn)
    upkeep = AssetUpkeep(Settings(purge_days=1), store, kit.storage, assets)

    async def purge() -> None:
        await asyncio.sleep(attempt * 0.004)
        await upkeep.purge()

    outcomes = await settled(approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO), purge())
    await upkeep.purge()
    await upkeep.close()

    (row,) = await kit.rows("SELECT reviewed_as, purged_at IS NOT NULL AS is_purged FROM dagapp.asset_revisions")
    is_approved = outcomes == {"done": 2}
    assert is_approved or outcomes == {"done": 1, "version.purged": 1}
    assert row == {"reviewed_as": "approved" if is_approved else "rejected", "is_purged": not is_approved}
    assert kit.storage.exists(cog) is is_approved
    assert await kit.items() == ({"dem-v0": (0, 1)} if is_approved else {})
    await check_consistency(kit)


async def test_requests_with_the_same_etag_exclude_each_other(kit: Kit):
    await kit.publish()
    etag = (await kit.store.asset("dem")).etag

    outcomes = await settled(
        clear(kit.store, "dem", Clearance.PUBLIC, caller=BOB, if_match=etag),
        expose(kit.store, "dem", Exposure.ALL_VERSIONS, caller=BOB, if_match=etag),
        unpublish(kit.store, "dem", caller=BOB, if_match=etag),
    )

    assert outcomes == {"done": 1, "asset.changed": 2}
    await check_consistency(kit)


@pytest.mark.parametrize("attempt", range(4))
async def test_an_approval_and_a_rerun_of_the_job_exclude_each_other(kit: Kit, attempt: int):
    submitted = await kit.submit()
    await kit.process(submitted, status="partial_success")
    again = "UPDATE dagapp.dag_jobs SET status = 'running', resume_count = resume_count + 1 WHERE job_id = %s"

    async def rerun() -> None:
        async with kit.store._connected() as connection:
            await connection.execute(again, [submitted.job_id])

    outcomes = await settled(approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO), rerun())

    assert outcomes in ({"done": 1, "revision.reviewed": 1}, {"done": 1, "version.processing": 1})
    await check_consistency(kit)


# Any sequence of actions: the database has the same state as the rules, and the catalogue matches it.

LABELS = st.sampled_from(["a", "b", "c"])
ORDINALS = st.sampled_from([0, 0, 0, 1, 1, 2])
ENDS = st.sampled_from(["completed", "completed", "completed", "partial_success", "failed", "cancelled"])
LEVELS = st.sampled_from([None, None, Clearance.OUO, Clearance.PUBLIC])
STEPS = st.one_of(
    st.tuples(st.just("submit"), LABELS, st.integers(1, 3)),
    st.tuples(st.just("end"), ENDS),
    st.tuples(st.just("approve"), ORDINALS, LEVELS),
    st.tuples(st.just("reject"), ORDINALS),
    st.tuples(st.just("clear"), st.sampled_from(list(Clearance))),
    st.tuples(st.just("expose"), st.sampled_from(list(Exposure))),
    st.tuples(st.just("unpublish"), st.one_of(st.none(), ORDINALS)),
    st.tuples(st.just("delete"), st.one_of(st.none(), ORDINALS)),
)


def publication(label: str, size: int) -> list[tuple]:
    """The steps that publish one more version or revision, unless they are refused."""
    approvals = [("approve", ordinal, None) for ordinal in (0, 1, 2)]
    return [("submit", label, size), ("end", "completed"), *approvals]


PUBLICATIONS = st.builds(publication, LABELS, st.integers(1, 3))
FIRST = [*publication("a", 1)[:2], ("approve", 0, Clearance.OUO)]
SEQUENCES = st.tuples(
    st.sampled_from([[], [FIRST]]),
    st.lists(st.one_of(PUBLICATIONS, STEPS.map(lambda step: [step])), min_size=1, max_size=10),
)


class Model:
    """Applies the same actions to the pure rules."""

    def __init__(self) -> None:
        self.state: AssetState | None = None
        self.hashes: dict[str, str] = {}
        self.identities: dict[int, SourceIdentity] = {}

    def act(self, step: tuple) -> str:
        try:
            return self._act(step)
        except DagmasterError as error:
            return error.code

    def _act(self, step: tuple) -> str:
        match step:
            case ("submit", label, size):
                decision = rules.submit(
                    self.state,
                    SubmittedSource(label, self.identities[size], "p", "ada"),
                    platform_id="local",
                )
                self.state = decision.state
                return decision.outcome.value
            case ("end", status):
                self._end(
                    ProcessingState.COMPLETED if status in ("completed", "partial_success") else ProcessingState.FAILED
                )
                return "done"
        if self.state is None:
            return "asset.not-found"
        match step:
            case ("approve", ordinal, level):
                change = rules.approve(self.state, ordinal, clearance=level, by="bob")
            case ("reject", ordinal):
                change = rules.reject(self.state, ordinal, reason="no")
            case ("clear", level):
                change = rules.clear(self.state, level)
            case ("expose", exposure):
                change = rules.expose(self.state, exposure)
            case ("unpublish", ordinal):
                change = rules.unpublish(self.state, ordinal)
            case ("delete", ordinal):
                change = rules.delete(self.state, ordinal)
        self.state = change.state
        return "done"

    def _end(self, processing: ProcessingState) -> None:
        for version in self.state.versions if self.state else ():
            if version.processing in (ProcessingState.QUEUED, ProcessingState.PROCESSING):
                self.state = with_processing(self.state, version.ordinal, processing)


async def act(kit: Kit, step: tuple) -> str:
    try:
        match step:
            case ("submit", label, size):
                return (await kit.submit(version_label=label, blob=f"{size}.tif", content=b"x" * size)).outcome
            case ("end", status):
                await end_all(kit, status)
            case ("approve", ordinal, level):
                await approve(kit.store, "dem", ordinal, caller=BOB, clearance=level)
            case ("reject", ordinal):
                await reject(kit.store, "dem", ordinal, caller=BOB, reason="no")
            case ("clear", level):
                await clear(kit.store, "dem", level, caller=BOB)
            case ("expose", exposure):
                await expose(kit.store, "dem", exposure, caller=BOB)
            case ("unpublish", ordinal):
                await unpublish(kit.store, "dem", ordinal, caller=BOB)
            case ("delete", ordinal):
                await delete(kit.store, "dem", ordinal, caller=BOB)
    except DagmasterError as error:
        return error.code
    return "done"


async def end_all(kit: Kit, status: str) -> None:
    """End every job of the asset, and write documents for the revisions that completed."""
    unfinished = await kit.rows(
        "SELECT job_id, version_ordinal, revision FROM dagapp.asset_revisions "
        "WHERE processing_state IN ('queued', 'processing')"
    )
    for row in unfinished:
        if status in ("completed", "partial_success"):
            await kit.write_documents("dem", row["version_ordinal"], row["revision"], tiles=max(1, 4 - row["revision"]))
        await kit.end_job(row["job_id"], status)


@pytest.mark.timeout(600)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(sequence=SEQUENCES)
async def test_any_sequence_of_actions_gives_the_same_state_in_the_database_as_in_the_rules(
    kit: Kit, sequence: tuple[list, list]
):
    steps = list(itertools.chain(*sequence[0], *sequence[1]))
    await kit.execute("TRUNCATE dagapp.geospatial_assets, dagapp.dag_jobs, dagapp.stac_documents CASCADE")
    await kit.execute("TRUNCATE dagapp.asset_submissions")
    await kit.execute("DELETE FROM pgstac.collections")
    model = Model()
    for size in (1, 2, 3):
        kit.put(f"{size}.tif", b"x" * size)
        info = kit.storage.head(kit.storage.location(f"{size}.tif"))
        model.identities[size] = SourceIdentity(info.etag, info.size_bytes)

    for step in steps:
        outcome = await act(kit, step)
        assert outcome == model.act(step), f"{step} of {steps}"
        if outcome not in ("done", "new_asset", "new_version", "new_revision"):
            continue  # refused, or nothing was changed

        loaded = await kit.store.state("dem")
        assert (loaded and comparable(loaded.state)) == (model.state and comparable(model.state)), f"{step} of {steps}"
        if model.state is not None:
            await check_consistency(kit)


def comparable(asset: AssetState) -> Any:
    """Without the hashes of parameters and contents, which the model does not know."""
    versions = [
        (v.ordinal, v.label, v.revision, v.approval, v.processing, v.approved_revision, v.is_unpublished, v.is_deleted)
        for v in asset.versions
    ]
    return asset.clearance, asset.exposure, asset.is_deleted, versions


async def test_a_refused_change_leaves_nothing_behind(kit: Kit):
    await kit.process(await kit.submit())
    before = await kit.store.asset("dem")

    with pytest.raises(Conflict):
        await approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO, revision=7)

    assert await kit.store.asset("dem") == before
    assert await kit.collection() is None
