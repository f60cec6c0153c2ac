"""A process that dies on either side of a commit, for each of the engine's write transactions.

The calls and the state are those of the interleavings. Each call is made by a process of its own, which ends as by
kill -9 at a given point: before the commit everything is as if the call had never been made, after the commit as
if it had returned.
"""

import asyncio
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import fresh_database
from tests.database.test_interleavings import (
    BROKEN,
    BY_NAME,
    TRANSACTIONS,
    Stage,
    Transaction,
    _connected,
    _fingerprint,
    _prepare,
    _restore,
    _save,
)

import dagmaster
from dagmaster import faults
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.maintenance.history import verify
from dagmaster.local.embedded import Cluster

pytestmark = pytest.mark.requirement("E3", "E4")

CRASHED = 137
MAX_VISITS = 5
DOOMED = "doomed"
# The commits of each call, by the names of their crash points.
COMMITS: dict[str, tuple[str, ...]] = {
    "create": ("submit",),
    "create_once": ("submit_once",),
    "create_once_too": ("submit_once",),
    "replay": ("replay_dead_letter",),
    "enqueue": ("enqueue_message",),
    "take_messages": ("take_messages",),
    "take_keyed": ("take_messages",),
    "beat": ("beat_orchestrator",),
    "claim": ("end_stuck_owners", "claim_jobs"),
    "claim_by_another": ("end_stuck_owners", "claim_jobs"),
    "take_over": ("end_stuck_owners", "claim_jobs", "orchestrator"),
    "advance_results": ("orchestrator",),
    "advance_overdue": ("orchestrator",),
    "advance_failing": ("orchestrator",),
    "advance_fail_fast": ("orchestrator",),
    "advance_half_dead": ("orchestrator",),
    "advance_with_payload": ("orchestrator",),
    "zombie": ("orchestrator",),
    "fail_job": ("fail_job",),
    "request_cancel": ("request_cancel",),
    "take_stops": ("take_stops",),
    "rerun": ("rerun",),
    "rerun_from_scratch": ("rerun",),
    "drop_letter": ("drop_dead_letter",),
    "release_unknown": ("release_unknown_jobs",),
    "review_deferred": ("review_deferred",),
    "retire": ("retire_orchestrator",),
    "maintain": ("forget_silent_instances", "make_event_partitions"),
    "set_queue": ("set_queue",),
    "renew": ("renew_leases",),
    "renew_late": ("renew_leases",),
    "checkpoint": ("save_checkpoint",),
    "checkpoint_late": ("save_checkpoint",),
    "beat_worker": ("beat_worker",),
    "retire_worker": ("retire_worker",),
    "report_to_ended": ("record_late",),
    "store": ("store_payload",),
    "store_new": ("store_payload",),
    "store_old": ("store_payload",),
    "store_for_ended": ("store_payload",),
    "report_stored": ("report_payloads",),
    "report_old": ("report_payloads",),
    "collect_unused": ("janitor",),
    "janitor": ("janitor",),
    "janitor_reports": ("janitor",),
    "note_stuck": ("janitor",),
    "prune": ("retention",),
    "forget": ("retention",),
    "forget_tables": ("retention",),
}
ONE_ROUND_TRIP = (
    "one round trip: the crash points of the worker are directly before and after it, and are swept in tests/engine"
)
SWEPT_ELSEWHERE = {
    "exchange": ONE_ROUND_TRIP,
    "exchange_claim": ONE_ROUND_TRIP,
    "exchange_limited": ONE_ROUND_TRIP,
    "exchange_limited_too": ONE_ROUND_TRIP,
    "exchange_late": ONE_ROUND_TRIP,
}
OF_ASSETS = (
    "submit_asset",
    "change_asset",
    "change_platform",
    "prepare_catalogue",
    "edit_layer",
    "publish_layer",
    "record_command",
    "external_layers",
    "external_database",
    "invalidate_cache",
    "create_key",
    "asset_upkeep",
    "adopt_dataset",
    "upload",
    "external_copies",
    "external_claim",
)
SWEPT = {(name, commit) for name, commits in COMMITS.items() for commit in commits}
# The loop handles a decision on a state that has changed meanwhile; these calls have no loop.
NOT_REPEATED = tuple(name for name in COMMITS if name.startswith(("advance_", "take_over")))


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


@pytest.fixture(scope="module")
def stage(cluster: Cluster, template_database: str, runner: asyncio.Runner) -> Iterator[Stage]:
    """One stage for all trials: each trial starts by restoring it."""

    async def prepare(stage: Stage) -> None:
        await _prepare(stage)
        await _save(stage)

    with fresh_database(cluster, template_database) as dsn:
        stage = Stage(dsn, PostgresLedger(dsn, "stage"))
        connected = _connected(stage)
        runner.run(connected.__aenter__())
        runner.run(prepare(stage))
        yield stage
        runner.run(connected.__aexit__(None, None, None))


class Trial:
    """One call, which is repeated from the same state."""

    def __init__(self, stage: Stage, transaction: Transaction) -> None:
        self.stage, self.transaction = stage, transaction

    async def begin(self) -> str:
        await _restore(self.stage, needs_partitions=self.transaction.needs_partitions)
        return await self.content()

    async def content(self) -> str:
        """The whole content of the database."""
        tables = await self.stage.rows(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'saved'"
            " AND to_regclass('dagapp.' || tablename) IS NOT NULL ORDER BY 1"
        )
        digests = " UNION ALL ".join(
            f"SELECT '{table}', md5(string_agg(t::text, '' ORDER BY t::text)) FROM dagapp.{table} t"
            for (table,) in tables
        )
        partitions = "SELECT 'partitions', string_agg(relname, ',' ORDER BY relname) FROM pg_class WHERE relispartition"
        return repr(await self.stage.rows(f"{digests} UNION ALL {partitions}"))

    async def call(self) -> None:
        """Make the call with a new connection, as another process would."""
        ledger = PostgresLedger(self.stage.dsn, DOOMED)
        await ledger.now()
        await self.transaction.call(self.stage, ledger)
        await ledger.close()

    def die(self, point: str) -> bool:
        """Whether the process died at the point; otherwise it has completed the call."""
        child = os.fork()
        if not child:
            try:
                faults.arm(point)
                asyncio.run(self.call())
            except BaseException:
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, CRASHED), f"{point}: ended with {code}"
        return code == CRASHED

    async def wait_until_disconnected(self) -> None:
        """Wait until the server has noticed that its client has died."""
        deadline = time.monotonic() + 10
        statement = "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE %s AND datname = current_database()"
        while await self.stage.rows(statement, f"%{DOOMED}%"):
            assert time.monotonic() < deadline, "the session of the dead process still exists"
            await asyncio.sleep(0.005)

    async def state(self, when: str) -> str:
        """The rows without times and random values, after all invariants were checked."""
        broken = await self.stage.rows(BROKEN)
        assert broken == [], f"{self.transaction.name}, {when}: {broken}"
        state = await _fingerprint(self.stage)
        if state not in self.stage.clean:
            report = await verify(self.stage.dsn)
            assert report.is_clean, f"{self.transaction.name}, {when}: {[str(each) for each in report.findings]}"
            self.stage.clean.add(state)
        return state

    async def repeated(self, point: str) -> str:
        await self.call()
        return await self.state(f"repeated after a death at {point}")


def _names() -> list[Any]:
    """All calls; of those with the same commits, all but one are slow tests."""
    first = {commits: name for name, commits in reversed(COMMITS.items())}
    return [
        name if first[commits] == name else pytest.param(name, marks=pytest.mark.slow)
        for name, commits in COMMITS.items()
    ]


@pytest.mark.parametrize("name", _names())
def test_a_call_that_dies_at_a_commit_is_done_completely_or_not_at_all_and_can_be_repeated(
    name: str, stage: Stage, runner: asyncio.Runner
) -> None:
    trial, at_once = Trial(stage, BY_NAME[name]), runner.run

    at_once(trial.begin())
    at_once(trial.call())
    undisturbed = at_once(trial.state("undisturbed"))
    for commit in COMMITS[name]:
        before, after = faults.around(commit)
        for visit in range(1, MAX_VISITS):
            prepared = at_once(trial.begin())
            if not trial.die(f"{before}:{visit}"):
                break
            at_once(trial.wait_until_disconnected())
            if visit == 1 and commit == COMMITS[name][0]:
                assert at_once(trial.content()) == prepared, f"{before}: the call has changed something"
            at_once(trial.state(before))
            if name not in NOT_REPEATED:
                assert at_once(trial.repeated(before)) == undisturbed

            at_once(trial.begin())
            assert trial.die(f"{after}:{visit}")
            at_once(trial.wait_until_disconnected())
            left = at_once(trial.state(after))
            if name not in NOT_REPEATED:
                at_once(trial.repeated(after))
        assert visit > 1, f"{name} never reached {before}"
        assert commit != COMMITS[name][-1] or left == undisturbed, f"{after}: the call is not complete"


OF_OUTBOX = {"outbox_claim", "outbox_delete", "outbox_forget", "outbox_postpone"}


def test_every_write_transaction_is_swept_or_listed_with_a_reason() -> None:
    assert not COMMITS.keys() & SWEPT_ELSEWHERE.keys()
    assert COMMITS.keys() | SWEPT_ELSEWHERE.keys() == {transaction.name for transaction in TRANSACTIONS}
    # Commits of documents are swept with raster jobs and those of callbacks in test_callbacks.py, both in tests/engine,
    # those of assets and keys in tests/operations/test_crashes.py, those of commands in tests/commands/test_crashes.py,
    # those of uploads in tests/operations/test_uploads.py, those of external copies in tests/external, and those of the
    # outbox in tests/simulation, where relays die at any of their calls.
    commits = {commit for _, commit in SWEPT} | {"callbacks", "documents", "fail_tasks", *OF_ASSETS, *OF_OUTBOX}
    assert commits == {*faults.TRANSACTIONS, *faults.STATEMENTS, "orchestrator"}


def test_every_transaction_in_the_code_has_crash_points_around_its_commit() -> None:
    begun = re.compile(r"( *)async with .*\.transaction\(\).*:\n((?:\1 .*\n|\n)*)(?=(\1.*\n)?)")
    bare = [
        file.name
        for file in sorted(Path(dagmaster.__file__).parent.rglob("*.py"))
        for match in begun.finditer(file.read_text())
        if "before-commit" not in match[2] or "after-commit" not in (match[3] or "")
    ]

    assert bare == ["due.py", "history.py", "storage.py", "api.py", "jobs.py"], (
        "these transactions only read, or write temporary tables"
    )
