"""The worker's loop: claims, reports, lost tasks, shutdown, outages."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from worker_fakes import Bench, a_task, id_of, until, working

from dagmaster import faults
from dagmaster.database.ledger.protocol import Report
from dagmaster.jobs.states import TaskStatus
from dagmaster.worker.loop import Worker
from dagmaster.worker.process_pool import Pool


@pytest.mark.requirement("E8")
async def test_an_announced_task_is_run_and_reported_at_once() -> None:
    async with working(worker_poll_interval=30.0) as bench:
        await until(lambda: len(bench.ledger.demands) == 1)
        await asyncio.sleep(0.05)
        started = time.monotonic()

        bench.add(task := a_task("echo"))
        await bench.report_of(task)

        assert time.monotonic() - started < 0.5


@pytest.mark.requirement("E8")
async def test_a_delivery_during_an_exchange_is_not_lost() -> None:
    async with working(worker_poll_interval=30.0) as bench:
        await until(lambda: len(bench.ledger.demands) == 1)
        bench.ledger.delay_seconds = 0.1
        bench.add(first := a_task("echo", "first"))
        await until(lambda: bench.ledger.calls_in_flight == 1)
        await asyncio.sleep(0.09)
        bench.worker._request_poll()  # as a delivery does
        await bench.report_of(first)
        bench.ledger.queued.append(second := a_task("echo", "second"))
        bench.worker._request_poll()

        assert (await bench.report_of(second)).status is TaskStatus.SUCCEEDED


@pytest.mark.requirement("E8")
async def test_tasks_without_a_notification_are_claimed_by_polling() -> None:
    async with working() as bench:
        await until(lambda: len(bench.ledger.demands) == 1)

        bench.ledger.queued.append(task := a_task("echo"))

        assert (await bench.report_of(task)).status is TaskStatus.SUCCEEDED
        assert len(bench.ledger.demands) > 1


@pytest.mark.requirement("E8")
async def test_the_owner_is_notified_of_results() -> None:
    async with working(a_task("echo")) as bench:
        assert await bench.owner.wait(5) == {"results"}


@pytest.mark.requirement("E8")
async def test_the_owner_is_notified_once_of_a_long_running_task() -> None:
    async with working(a_task("sleep", seconds=1)) as bench:
        assert await bench.owner.wait(0.15) == frozenset()
        assert await bench.owner.wait(0.3) == {"results"}
        assert await bench.owner.wait(0.3) == frozenset()


@pytest.mark.requirement("Q1")
async def test_a_worker_claims_no_more_tasks_than_it_has_slots() -> None:
    tasks = [a_task("sleep", f"n{i}", seconds=60) for i in range(10)]
    async with working(
        *tasks,
        a_task("sleep_blocking", "heavy1", seconds=60),
        a_task("hang", "heavy2"),
        worker_slots=3,
        worker_processes=1,
    ) as bench:
        await until(lambda: len(bench.ledger.running) == 4)
        await asyncio.sleep(0.2)

        assert len(bench.ledger.running) == 4
        assert {d.light for d in bench.ledger.demands} == {3}
        assert len(bench.worker.running) == 4


@pytest.mark.requirement("Q1")
async def test_slots_of_one_kind_are_independent_of_the_other() -> None:
    heavy = a_task("sleep_blocking", "heavy", seconds=60)
    async with working(heavy, a_task("sleep_blocking", "heavy2", seconds=60), worker_processes=1) as bench:
        await bench.is_running(heavy)
        bench.add(*(tasks := [a_task("echo", f"n{i}") for i in range(5)]))
        for task in tasks:
            await bench.report_of(task)

        assert all(demand.heavy == 0 for demand in bench.ledger.demands[1:])
        assert [task.node_id for task in bench.ledger.queued] == ["heavy2"]


@pytest.mark.requirement("Q1")
async def test_a_worker_claims_when_a_slot_of_a_full_kind_becomes_free() -> None:
    """Tasks that were announced while all slots were taken do not wait for the next poll."""
    heavy = a_task("sleep_blocking", "heavy", seconds=0.5)
    async with working(heavy, worker_processes=1, worker_poll_interval=60) as bench:
        await bench.is_running(heavy)
        bench.add(later := a_task("sleep_blocking", "later", seconds=0))

        assert (await bench.report_of(later)).status is TaskStatus.SUCCEEDED
        assert heavy.task_id in bench.ledger.reports


@pytest.mark.requirement("Q1")
async def test_a_report_does_not_claim_if_no_tasks_are_left() -> None:
    async with working(worker_poll_interval=60) as bench:
        await until(lambda: bench.ledger.demands)
        bench.add(task := a_task("echo", "one"))
        await bench.report_of(task)
        await until(lambda: not bench.worker.running)

        assert bench.ledger.is_claiming == [True, True, False]


@pytest.mark.requirement("Q1")
async def test_a_report_claims_if_there_may_be_more_tasks() -> None:
    tasks = [a_task("echo", f"n{i}") for i in range(6)]
    async with working(*tasks, worker_slots=2, worker_poll_interval=60) as bench:
        reports = [await bench.report_of(task) for task in tasks]

    assert {report.status for report in reports} == {TaskStatus.SUCCEEDED}
    assert set(bench.ledger.reports) == {task.task_id for task in tasks}


@pytest.mark.requirement("Q1")
async def test_full_slots_of_one_kind_do_not_trigger_claims_for_the_other() -> None:
    tasks = [a_task("sleep", f"n{i}", seconds=0.3) for i in range(2)]
    async with working(*tasks, worker_slots=2, worker_poll_interval=60) as bench:
        await until(lambda: len(bench.worker.running) == 2)
        await asyncio.sleep(0.1)

        assert [(demand.light, demand.heavy) for demand in bench.ledger.demands] == [(2, 2)]

        for task in tasks:
            await bench.report_of(task)


BROKER: dict[str, Any] = {"transport": "servicebus", "service_bus_fqdn": "example.servicebus.windows.net"}


@pytest.mark.requirement("Q1", "Q3")
async def test_with_a_message_broker_a_report_claims_tasks_that_were_not_announced() -> None:
    """A broker announces only some of the tasks: the others must not wait for the next poll."""
    first, unannounced = a_task("sleep", "first", seconds=0.1), a_task("echo", "unannounced")
    async with working(worker_poll_interval=60, **BROKER) as bench:
        await until(lambda: bench.ledger.demands)
        bench.add(first)
        await bench.is_running(first)
        bench.ledger.queued.append(unannounced)

        assert (await bench.report_of(unannounced)).status is TaskStatus.SUCCEEDED


@pytest.mark.requirement("Q1", "Q3")
async def test_a_worker_with_full_slots_receives_messages_only_later() -> None:
    tasks = [a_task("sleep", f"n{i}", seconds=0.15) for i in range(2)]
    async with working(*tasks, worker_slots=2, worker_poll_interval=60, **BROKER) as bench:
        await until(lambda: len(bench.worker.running) == 2)
        bench.add(later := a_task("echo", "later"))
        await asyncio.sleep(0.05)

        assert [(demand.light, demand.heavy) for demand in bench.ledger.demands] == [(2, 2)]
        assert (await bench.report_of(later)).status is TaskStatus.SUCCEEDED


@pytest.mark.requirement("Q1", "Q3")
async def test_a_worker_with_full_light_slots_receives_messages_for_heavy_ones() -> None:
    light = a_task("sleep", "light", seconds=60)
    async with working(light, worker_slots=1, worker_poll_interval=60, **BROKER) as bench:
        await bench.is_running(light)
        bench.add(heavy := a_task("sleep_blocking", "heavy", seconds=0))

        assert (await bench.report_of(heavy)).status is TaskStatus.SUCCEEDED


@pytest.mark.requirement("E8")
async def test_a_notification_sent_with_the_commit_is_not_repeated() -> None:
    async with working() as bench:
        bench.ledger.notifier = None
        bench.add(task := a_task("echo"))
        await bench.report_of(task)

        assert await bench.owner.wait(0.1) == frozenset()


@pytest.mark.requirement("E11")
async def test_a_task_that_was_lost_several_times_runs_alone() -> None:
    neighbour = a_task("sleep", "neighbour", seconds=0.3)
    first, second = (a_task("sleep", node, 3, losses=2, seconds=0.2) for node in ("first", "second"))
    async with working(first, second, neighbour) as bench:
        await bench.is_running(neighbour)
        bench.ledger.queued.append(later := a_task("echo", "later"))
        assert bench.worker.running == [neighbour]
        for suspect in (first, second):
            await bench.is_running(suspect)
            assert bench.worker.running == [suspect]
            assert neighbour.task_id in bench.ledger.reports, "it is reported before the suspect runs"
            assert later in bench.ledger.queued

        await bench.report_of(later)

        renewed = {id_of(row) for renewal in bench.ledger.renewals[:3] for row in renewal}
        assert first.task_id in renewed, "its lease is renewed while it waits"
        assert [bench.ledger.reports[task.task_id].status.value for task in (first, second)] == ["succeeded"] * 2


class RemotePool(Pool):
    """A pool that claims to run on other machines."""

    is_on_this_machine = False


class GrowingPool(RemotePool):
    """A pool without slots at first, like a cluster that is not connected yet."""

    slots: int | None = 0

    async def start(self, on_more_slots: Callable[[], None] | None = None, /) -> None:
        self.on_more_slots = on_more_slots


async def test_a_worker_claims_as_soon_as_its_executor_has_slots() -> None:
    plain, pool = a_task("pid", "plain"), GrowingPool(memory_mb=2048)
    async with working(plain, executor=pool, worker_poll_interval=600) as bench:
        await until(lambda: bench.ledger.demands)
        pool.slots = 1
        assert pool.on_more_slots is not None
        pool.on_more_slots()

        await bench.report_of(plain)


@pytest.mark.requirement("E11")
async def test_a_suspect_on_another_machine_does_not_run_alone() -> None:
    neighbour = a_task("sleep", "neighbour", seconds=60)
    plain, light = a_task("pid", "plain", 3, losses=2), a_task("echo", "light", 3, losses=2)
    async with working(neighbour, plain, executor=RemotePool(memory_mb=2048)) as bench:
        await bench.report_of(plain)
        bench.add(light)
        await until(lambda: light.task_id in bench.worker._suspects)

        assert neighbour in bench.worker.running


@pytest.mark.requirement("E11")
async def test_a_suspect_that_cannot_run_alone_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagmaster.worker.loop.SUSPECT_SECONDS", 0.2)
    neighbour, suspect = a_task("sleep", "neighbour", seconds=60), a_task("echo", "suspect", 3, losses=2)
    async with working(neighbour, suspect) as bench:
        report = await bench.report_of(suspect)
        bench.add(other := a_task("echo", "other"))
        await bench.report_of(other)

    assert report.status is TaskStatus.RETURNED


@pytest.mark.requirement("E11")
@pytest.mark.parametrize("end", ["stop", "cancel", "lose"])
async def test_a_waiting_suspect_can_be_stopped(end: str) -> None:
    neighbour, suspect = a_task("sleep", "neighbour", seconds=60), a_task("echo", "suspect", 3, losses=2)
    async with working(neighbour, suspect) as bench:
        await bench.is_running(neighbour)
        if end == "cancel":
            bench.ledger.to_stop = {suspect.task_id}
        elif end == "lose":
            bench.ledger.withdraw(suspect)
        else:
            bench.worker.stop(grace_seconds=0)

        await until(lambda: not bench.worker._suspects)
        if end != "lose":
            assert (await bench.report_of(suspect)).status is TaskStatus.RETURNED
    assert not bench.ledger.late


@pytest.mark.requirement("E7")
async def test_all_finished_tasks_are_reported_in_one_exchange_at_a_time() -> None:
    tasks = [a_task("noop", f"n{i}") for i in range(1000)]
    async with working(*tasks, worker_slots=100) as bench:
        bench.ledger.delay_seconds = 0.001
        await until(lambda: len(bench.ledger.reports) == 1000)

        assert bench.ledger.most_in_flight == 1
        assert bench.worker.counters.exchanges < 40
        assert bench.worker.counters.succeeded == bench.worker.counters.claimed == 1000


@pytest.mark.requirement("E7")
async def test_large_reports_are_spread_over_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagmaster.worker.loop.MAX_REPORT_BYTES", 3000)
    tasks = [a_task("echo", f"n{i}", text="x" * 1000) for i in range(20)]
    async with working(*tasks) as bench:
        await until(lambda: len(bench.ledger.reports) == 20)

        assert bench.worker.counters.exchanges >= 10


@pytest.mark.requirement("E11")
async def test_leases_are_renewed_with_the_latest_progress() -> None:
    async with working(task := a_task("progresses")) as bench:
        await until(lambda: any(row.progress for renewal in bench.ledger.renewals for row in renewal))

        (row,) = bench.ledger.renewals[-1]
        assert id_of(row) == task.task_id
        assert row.progress == {"fraction": 1.0, "message": "tile 3 of 4", "tiles": 3}
        assert bench.ledger.workers[bench.worker.worker_id].stats["running"] == 1


@pytest.mark.requirement("E23")
async def test_progress_that_is_too_large_to_be_sent_with_the_leases_is_left_out() -> None:
    async with working(a_task("sleep", seconds=60)) as bench:
        await until(lambda: bench.worker.held_tasks)
        context = bench.worker.held_tasks[0].context
        context.progress(0.5, "half", tiles="x" * 1_000_000)  # type: ignore[arg-type]

        assert context.running().progress == {
            "fraction": 0.5,
            "message": "half",
            "dropped": "counts of more than 4,096 bytes",
        }


@pytest.mark.requirement("E23")
async def test_progress_is_reported_before_the_next_renewal_is_due() -> None:
    async with working(a_task("progresses"), lease_renew_sec=4.0) as bench:
        await until(lambda: any(row.progress for renewal in bench.ledger.renewals for row in renewal), 3)

        progress = next(row.progress for renewal in bench.ledger.renewals for row in renewal if row.progress)
        assert progress == {"fraction": 1.0, "message": "tile 3 of 4", "tiles": 3}


@pytest.mark.requirement("E14")
@pytest.mark.parametrize("handler", ["sleep", "poll_flags", "progresses"])
async def test_a_lost_task_is_stopped_and_its_report_dropped(handler: str, tmp_path) -> None:
    async with working(task := a_task(handler, seconds=60, note=str(tmp_path / "note"))) as bench:
        await bench.is_running(task)

        bench.ledger.withdraw(task)

        await until(lambda: not bench.worker.running)
        assert bench.worker.counters.lost_tasks == 1
        await asyncio.sleep(0.1)
        assert not bench.ledger.reports
        assert not bench.ledger.late


@pytest.mark.requirement("E7")
async def test_a_late_report_is_counted_and_has_no_other_effect() -> None:
    async with working(task := a_task("sleep", seconds=0.2), lease_renew_sec=4.0) as bench:
        await bench.is_running(task)
        bench.ledger.withdraw(task)

        await until(lambda: bench.worker.counters.late_reports == 1)
        bench.add(other := a_task("echo", "other"))

        assert (await bench.report_of(other)).status is TaskStatus.SUCCEEDED
        assert bench.worker.counters.late_reports == 1


@pytest.mark.requirement("E27")
async def test_an_outage_keeps_reports_until_the_database_is_back() -> None:
    async with working(*(tasks := [a_task("sleep", f"n{i}", seconds=0.1) for i in range(5)])) as bench:
        await until(lambda: len(bench.worker.running) == 5)
        bench.ledger.is_down = True
        await until(lambda: bench.worker.counters.outages == 1 and not bench.worker.running)
        await asyncio.sleep(0.3)
        assert not bench.ledger.reports

        bench.ledger.is_down = False

        for task in tasks:
            assert (await bench.report_of(task)).status is TaskStatus.SUCCEEDED
        assert bench.worker.counters.late_reports == 0


@pytest.mark.requirement("E11")
async def test_finished_tasks_are_renewed_until_their_report_is_accepted() -> None:
    async with working(task := a_task("sleep", seconds=0.1)) as bench:
        await bench.is_running(task)
        lease_ledger = bench.worker._keeper._ledger
        down = type(bench.ledger)([])
        down.is_down = True
        bench.worker._ledger = down  # only the connection for exchanges is interrupted
        await until(lambda: not bench.worker.running)
        before = len(lease_ledger.renewals)

        await until(lambda: len(lease_ledger.renewals) > before + 2)

        assert [id_of(row) for row in lease_ledger.renewals[-1]] == [task.task_id]
        bench.worker._ledger = lease_ledger


@pytest.mark.requirement("E7")
async def test_an_exchange_whose_response_was_lost_is_repeated() -> None:
    async with working(task := a_task("sleep", seconds=0.1)) as bench:
        await bench.is_running(task)
        bench.ledger.loses_answers = 1

        assert (await bench.report_of(task)).status is TaskStatus.SUCCEEDED
        await until(lambda: bench.worker.counters.late_reports == 1)


@pytest.mark.requirement("E27")
async def test_a_report_that_is_refused_does_not_block_the_others() -> None:
    bad = a_task("echo", "bad", poison=True)
    good = [a_task("echo", f"n{i}") for i in range(5)]

    def is_poisoned(report: Report) -> bool:
        return bool(report.output) and "poison" in report.output["echoed_params"]

    bench = Bench([*good[:3], bad, *good[3:]])
    bench.ledger.refuses = is_poisoned
    running = asyncio.create_task(bench.worker.run())

    for task in good:
        assert (await bench.report_of(task)).status is TaskStatus.SUCCEEDED
    report = await bench.report_of(bad)
    bench.worker.stop()
    await running

    assert report.error is not None
    assert (report.error["code"], report.error["blame"]) == ("worker.report-refused", "engine")
    assert bench.worker.counters.refused_reports == 1


async def test_a_task_that_is_cancelled_on_request_does_not_count_as_failed() -> None:
    bench = Bench([task := a_task("sleep", "slow", seconds=60)])
    running = asyncio.create_task(bench.worker.run())
    await until(lambda: len(bench.worker.running) == 1)

    bench.ledger.to_stop = {task.task_id}
    report = await bench.report_of(task)
    bench.worker.stop()
    await running

    assert report.status is TaskStatus.CANCELLED
    assert (bench.worker.counters.cancelled, bench.worker.counters.failed) == (1, 0)


@pytest.mark.requirement("E22")
async def test_a_graceful_stop_lets_handlers_finish_and_returns_the_other_tasks() -> None:
    quick = a_task("stubborn", "quick", seconds=0.3)
    polite = a_task("sleep", "polite", seconds=60)
    ignoring = a_task("sleep_blocking", "ignoring", seconds=60)
    cancelled = a_task("progresses", "cancelled")
    bench = Bench([quick, polite, ignoring, cancelled])
    running = asyncio.create_task(bench.worker.run())
    await until(lambda: len(bench.worker.running) == 4)

    bench.add(unclaimed := a_task("echo", "unclaimed"))
    bench.worker.stop(grace_seconds=0.7)
    started = time.monotonic()
    await running

    assert 0.6 < time.monotonic() - started < 5
    statuses = {report.node_id: report.status.value for report in bench.ledger.reports.values()}
    assert statuses == {"quick": "succeeded", "polite": "returned", "ignoring": "returned", "cancelled": "returned"}
    assert unclaimed in bench.ledger.queued
    assert not bench.ledger.workers, "the worker has removed itself"


@pytest.mark.requirement("E22")
async def test_a_second_signal_makes_the_worker_return_all_tasks_at_once() -> None:
    ignoring = [a_task("sleep_blocking", "plain", seconds=60), a_task("progresses", "async")]
    bench = Bench(ignoring)
    running = asyncio.create_task(bench.worker.run())
    await until(lambda: len(bench.worker.running) == 2)
    bench.worker.stop(grace_seconds=600)
    done, _ = await asyncio.wait([running], timeout=0.3)
    assert not done

    bench.worker.stop_now()
    await asyncio.wait_for(running, 10)

    assert [report.status for report in bench.ledger.reports.values()] == [TaskStatus.RETURNED] * 2


@pytest.mark.requirement("E22")
async def test_a_stop_waits_no_longer_than_its_grace_period_for_the_database(monkeypatch) -> None:
    """One handler ends at once and its report is ready; the other ignores the request and still runs."""
    monkeypatch.setattr("dagmaster.worker.loop.LAST_REPORTS_SECONDS", 0.2)
    bench = Bench([a_task("sleep", "polite", seconds=60), a_task("progresses", "ignoring")], task_lease_sec=600)
    running = asyncio.create_task(bench.worker.run())
    await until(lambda: len(bench.worker.running) == 2)
    bench.ledger.delay_seconds = 600

    bench.worker.stop(grace_seconds=0.5)

    await asyncio.wait_for(running, 10)
    assert bench.worker.running == []
    assert bench.ledger.reports == {}


@pytest.mark.requirement("E22")
async def test_a_stop_without_running_tasks_is_immediate() -> None:
    bench = Bench()
    running = asyncio.create_task(bench.worker.run())
    await until(lambda: len(bench.ledger.demands) == 1)

    bench.worker.stop()

    await asyncio.wait_for(running, 1)
    assert bench.ledger.reports == {}


@pytest.mark.requirement("E22")
async def test_a_plain_handler_can_give_its_task_back(tmp_path) -> None:
    bench = Bench([task := a_task("poll_flags", note=str(tmp_path / "note"))])
    running = asyncio.create_task(bench.worker.run())
    await until(lambda: any(row.progress for renewal in bench.ledger.renewals for row in renewal))

    bench.worker.stop(grace_seconds=20)
    await asyncio.wait_for(running, 5)

    assert bench.ledger.reports[task.task_id].status is TaskStatus.RETURNED
    assert (tmp_path / "note").read_text() == "cancelled=False shutting_down=True"


@pytest.mark.requirement("E22")
async def test_tasks_claimed_during_shutdown_are_returned_without_starting() -> None:
    bench = Bench()
    bench.ledger.delay_seconds = 0.1
    running = asyncio.create_task(bench.worker.run())
    await until(lambda: bench.ledger.calls_in_flight == 1)
    bench.ledger.queued.append(task := a_task("echo"))

    bench.worker.stop()
    await running

    assert bench.ledger.reports[task.task_id].status is TaskStatus.RETURNED


@pytest.mark.requirement("E22")
async def test_a_stop_during_an_outage_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagmaster.worker.loop.LAST_REPORTS_SECONDS", 0.3)
    bench = Bench([a_task("sleep", seconds=60)])
    running = asyncio.create_task(bench.worker.run())
    await until(lambda: len(bench.worker.running) == 1)
    bench.ledger.is_down = True

    bench.worker.stop(grace_seconds=0.1)

    await asyncio.wait_for(running, 5)
    assert bench.worker.running == []
    assert bench.ledger.reports == {}


@pytest.mark.requirement("E27")
async def test_tasks_are_claimed_by_polling_if_the_transport_fails() -> None:
    bench = Bench()

    class Broken:
        async def receive(self, *_: object) -> list[object]:
            raise ConnectionError("the broker is unavailable")

    bench.worker._transport = Broken()  # type: ignore[assignment]
    running = asyncio.create_task(bench.worker.run())
    bench.ledger.queued.append(first := a_task("echo"))
    await bench.report_of(first)
    bench.ledger.queued.append(later := a_task("echo", "later"))
    await bench.report_of(later)
    bench.worker.stop()
    await running

    reported = {task_id: report.status for task_id, report in bench.ledger.reports.items()}
    assert reported == dict.fromkeys([first.task_id, later.task_id], TaskStatus.SUCCEEDED)


@pytest.mark.parametrize(
    ("point", "reports"),
    [("worker.before-claim", 0), ("worker.after-claim", 0), ("worker.after-handler", 0), ("worker.after-report", 1)],
)
async def test_the_crash_points_are_reached_at_the_right_moment(point: str, reports: int, monkeypatch) -> None:
    reached = asyncio.Event()
    bench = Bench([a_task("echo")])

    def die(name: str) -> None:
        if name == point and not reached.is_set():
            reached.set()
            seen.append(len(bench.ledger.reports))

    seen: list[int] = []
    monkeypatch.setattr(faults, "reach", die)
    running = asyncio.create_task(bench.worker.run())
    await asyncio.wait_for(reached.wait(), 5)
    bench.worker.stop()
    await running

    assert seen == [reports]


def test_two_workers_never_share_an_id() -> None:
    bench = Bench()
    others = [
        Worker(bench.settings, bench.ledger, None, None, bench.worker._runner._registry)  # type: ignore[arg-type]
        for _ in range(2)
    ]
    assert others[0].worker_id != others[1].worker_id
