"""Plain handlers run in child processes that can be killed. All processes here are real."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from worker_fakes import FakeLedger, a_registry, a_task, until

from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import TaskMessage
from dagmaster.jobs.states import TaskStatus
from dagmaster.worker.context import TaskContext
from dagmaster.worker.outcome import Outcome
from dagmaster.worker.process_pool import Child, Pool


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Harness:
    def __init__(self, **options: Any) -> None:
        self.ledger = FakeLedger()
        self.pool = Pool(**({"memory_mb": 2048, "cancel_grace_seconds": 0.3} | options))

    @property
    def idle_pids(self) -> list[int]:
        return [child["pid"] for child in self.pool.children if child["task_id"] is None]

    def context(self, task: TaskMessage) -> TaskContext:
        return TaskContext(task, self.ledger)  # type: ignore[arg-type]

    async def run(self, task: TaskMessage, context: TaskContext | None = None, memory_mb: int | None = None) -> Outcome:
        from dataclasses import replace

        registration = replace(a_registry()[task.handler], memory_mb=memory_mb)
        return await self.pool.run(registration, task, task.timeout_seconds, context or self.context(task))


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness()
    yield harness
    await harness.pool.close()


async def note(path: Path) -> list[int]:
    await until(lambda: path.exists() and bool(path.read_text()))
    return [int(pid) for pid in path.read_text().split()]


@pytest.mark.requirement("H1")
async def test_a_plain_handler_runs_in_a_separate_process_that_is_reused(harness: Harness) -> None:
    first = await harness.run(a_task("pid"))
    second = await harness.run(a_task("pid"))

    assert first.status is TaskStatus.SUCCEEDED
    assert first.output["pid"] == first.output["group"] != os.getpid()
    assert first.output["parent"] != os.getpid(), "the supervisor is its parent"
    assert second.output == first.output
    assert first.metrics is not None
    assert first.metrics["cpu_seconds"] >= 0
    assert first.metrics["peak_mb"] > 5


@pytest.mark.requirement("H1")
async def test_concurrent_tasks_have_separate_processes(harness: Harness) -> None:
    slow = asyncio.create_task(harness.run(a_task("sleep_blocking", seconds=0.5)))
    await asyncio.sleep(0.3)

    outcomes = [await harness.run(a_task("pid")), await slow]

    assert all(outcome.status is TaskStatus.SUCCEEDED for outcome in outcomes)
    assert len(set(harness.idle_pids)) == 2


@pytest.mark.requirement("E10")
async def test_a_hung_c_call_is_killed_after_its_timeout(harness: Harness) -> None:
    await harness.run(a_task("pid"))  # starts the process, so that the timeout measures only the handler
    (pid,) = harness.idle_pids
    started = time.monotonic()

    outcome = await harness.run(a_task("hang", timeout=0.5))

    assert 0.5 <= time.monotonic() - started < 2
    assert outcome.status is TaskStatus.FAILED
    assert outcome.error is not None
    assert (outcome.error["code"], outcome.error["blame"]) == ("handler.timed-out", "handler")
    assert not is_alive(pid)
    assert (await harness.run(a_task("pid"))).output["pid"] != pid


@pytest.mark.requirement("E10")
async def test_programs_that_a_handler_started_die_with_it(harness: Harness, tmp_path: Path) -> None:
    outcome = await harness.run(a_task("spawn", timeout=1.5, note=str(tmp_path / "note")))

    child, grandchild = await note(tmp_path / "note")
    assert outcome.error is not None
    assert outcome.error["code"] == "handler.timed-out"
    assert not is_alive(child)
    assert not is_alive(grandchild)


@pytest.mark.requirement("E10")
@pytest.mark.parametrize("end", ["timeout", "crash", "cancel", "shutdown"])
async def test_programs_that_left_their_process_group_are_killed_with_their_task_only(
    harness: Harness, end: str, tmp_path: Path
) -> None:
    """Programs in other sessions or groups are killed too, but not those of a concurrent task."""
    sibling = asyncio.create_task(harness.run(a_task("daemonize", "sibling", note=str(tmp_path / "sibling"))))
    others = await note(tmp_path / "sibling")
    task = a_task("daemonize", timeout=2 if end == "timeout" else 60, note=str(tmp_path / "note"), then=end)
    context = harness.context(task)
    running = asyncio.create_task(harness.run(task, context))
    pids = await note(tmp_path / "note")

    if end == "cancel":
        context.cancel()
    elif end == "shutdown":
        running.cancel()
    await asyncio.wait([running])

    assert len(pids) == 4
    assert not any(map(is_alive, pids))
    assert all(map(is_alive, others))
    sibling.cancel()
    await asyncio.wait([sibling])
    assert not any(map(is_alive, others))


@pytest.mark.requirement("E10")
async def test_programs_left_by_a_finished_task_end_with_its_process(tmp_path: Path) -> None:
    harness = Harness()
    outcome = await harness.run(a_task("daemonize", note=str(tmp_path / "note"), then="return"))
    pids = await note(tmp_path / "note")

    await harness.pool.close()

    assert outcome.error is None
    assert not any(map(is_alive, pids))


@pytest.mark.requirement("H1")
async def test_a_crash_is_blamed_on_the_environment_and_reported_with_the_exit_code(harness: Harness) -> None:
    outcome = await harness.run(a_task("crash", exit_code=13))

    assert outcome.status is TaskStatus.FAILED
    assert outcome.error is not None
    assert (outcome.error["code"], outcome.error["blame"]) == ("worker.child-died", "environment")
    assert "exit code 13" in outcome.error["message"]
    assert (await harness.run(a_task("pid"))).status is TaskStatus.SUCCEEDED


@pytest.mark.requirement("H1")
async def test_a_process_killed_from_outside_reports_the_signal(harness: Harness) -> None:
    await harness.run(a_task("pid"))
    (pid,) = harness.idle_pids
    running = asyncio.create_task(harness.run(a_task("sleep_blocking", seconds=60)))
    await asyncio.sleep(0.1)

    os.kill(pid, signal.SIGKILL)

    outcome = await running
    assert outcome.error is not None
    assert re.search(r"killed by sig\S* 9", outcome.error["message"])


@pytest.mark.requirement("H1")
async def test_a_crash_is_detected_although_a_grandchild_keeps_the_channel_open(
    harness: Harness, tmp_path: Path
) -> None:
    outcome = await asyncio.wait_for(harness.run(a_task("daemonic", note=str(tmp_path / "note"))), 10)

    assert outcome.error is not None
    assert re.search(r"killed by sig\S* 6", outcome.error["message"])
    assert not any(map(is_alive, await note(tmp_path / "note")))


@pytest.mark.requirement("E10")
@pytest.mark.parametrize("how", ["SIGSTOP", "SIGKILL"])
async def test_no_process_outlives_a_supervisor_that_was_stopped_or_killed(
    harness: Harness, how: str, tmp_path: Path
) -> None:
    task = a_task("kill_supervisor", timeout=20 if how == "SIGKILL" else 2, note=str(tmp_path / "note"), signal=how)
    started = time.monotonic()

    outcome = await harness.run(task)

    assert time.monotonic() - started < 15
    assert outcome.error is not None
    assert outcome.error["code"] == ("worker.child-died" if how == "SIGKILL" else "handler.timed-out")
    pids = await note(tmp_path / "note")
    assert len(pids) == 5
    assert not any(map(is_alive, pids))


@pytest.mark.requirement("E10")
async def test_a_supervisor_that_does_not_respond_is_killed(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagmaster.worker.process_pool.SUPERVISOR_SECONDS", 0.3)
    running = asyncio.create_task(harness.run(a_task("daemonize", note=str(tmp_path / "note"))))
    pids = await note(tmp_path / "note")
    (child,) = harness.pool._busy
    monkeypatch.setattr(child, "end_now", lambda: None)  # as if it were stopped again each time
    os.kill(child.process.pid, signal.SIGSTOP)

    running.cancel()
    await asyncio.wait([running])

    assert not any(map(is_alive, [child.process.pid, *pids]))


@pytest.mark.requirement("E10")
def test_no_process_outlives_a_worker_that_dies_while_a_supervisor_is_stopped(tmp_path: Path) -> None:
    script = (
        f"import asyncio, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_process_pool import Harness, a_task\n"
        f"task = a_task('kill_supervisor', note={str(tmp_path / 'note')!r}, signal='SIGSTOP')\n"
        "asyncio.run(Harness().run(task))"
    )
    worker = subprocess.Popen([sys.executable, "-c", script])
    try:
        pids = asyncio.run(note(tmp_path / "note"))
        asyncio.run(until(lambda: Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[0] == "T"))
    finally:
        worker.kill()
        worker.wait()

    asyncio.run(until(lambda: not any(map(is_alive, pids))))


@pytest.mark.requirement("H1")
async def test_a_child_that_died_while_idle_is_replaced(harness: Harness) -> None:
    await harness.run(a_task("pid"))
    (pid,) = harness.idle_pids
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_alive(pid))
    await asyncio.sleep(0.1)

    assert (await harness.run(a_task("pid"))).status is TaskStatus.SUCCEEDED


@pytest.mark.requirement("H1")
async def test_end_now_kills_all_children(harness: Harness, tmp_path: Path) -> None:
    running = asyncio.create_task(harness.run(a_task("spawn", note=str(tmp_path / "note"))))
    pids = await note(tmp_path / "note")

    harness.pool.end_now()

    assert (await running).status is TaskStatus.FAILED
    assert not any(map(is_alive, pids))


@pytest.mark.requirement("H1")
async def test_the_memory_limit_holds(harness: Harness) -> None:
    fits = await harness.run(a_task("allocate", megabytes=100), memory_mb=400)
    too_much = await harness.run(a_task("allocate", megabytes=1000), memory_mb=400)
    out_of_memory = await harness.run(a_task("memory_hog_then_small"), memory_mb=400)
    other_limit = await harness.run(a_task("allocate", megabytes=600), memory_mb=1500)

    assert fits.output == {"megabytes": 100}
    assert fits.metrics is not None
    assert 100 < fits.metrics["peak_mb"] < 400
    for outcome in (too_much, out_of_memory):
        assert outcome.error is not None
        assert (outcome.error["code"], outcome.error["blame"]) == ("handler.out-of-memory", "handler")
        assert "its limit of 400 MB" in outcome.error["message"]
    assert other_limit.output == {"megabytes": 600}


@pytest.mark.requirement("H1")
async def test_children_are_replaced_after_a_number_of_tasks() -> None:
    harness = Harness(recycle_after=2)
    pids = [(await harness.run(a_task("pid"))).output["pid"] for _ in range(4)]
    await harness.pool.close()

    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert not any(map(is_alive, pids))


@pytest.mark.requirement("H1")
async def test_output_on_stdout_does_not_disturb_the_channel(
    harness: Harness, capfd: pytest.CaptureFixture[str]
) -> None:
    task = a_task("print_and_log")
    context = harness.context(task)

    outcome = await harness.run(task, context)

    lines = context.log_lines()
    assert outcome.output == {"fine": "yes"}
    assert lines is not None
    assert (lines[0]["level"], lines[0]["text"].startswith("read 3 bands")) == ("info", True)
    assert "abc123" not in lines[0]["text"]
    assert "tile=7" in lines[1]["text"]
    assert "a line on standard output" in capfd.readouterr().err


@pytest.mark.requirement("X3")
async def test_errors_of_a_child_contain_no_secret_and_no_nul_characters(harness: Harness) -> None:
    outcome = await harness.run(a_task("leak"))

    assert outcome.error is not None
    assert outcome.error["type"] == "ValueError"
    assert "abc123" not in str(outcome.error)
    assert "\x00" not in str(outcome.error)
    assert "worker_handlers.py" in outcome.error["traceback"]


@pytest.mark.requirement("H1")
async def test_sys_exit_in_a_handler_is_a_failure_and_the_child_process_continues(harness: Harness) -> None:
    outcome = await harness.run(a_task("sys_exit_plain"))

    assert outcome.error is not None
    assert (outcome.error["type"], outcome.error["message"]) == ("SystemExit", "the handler called sys.exit(3)")
    assert len(harness.idle_pids) == 1


@pytest.mark.requirement("E12")
async def test_an_error_that_cannot_be_printed_is_a_failure_and_the_child_process_continues(
    harness: Harness,
) -> None:
    outcome = await harness.run(a_task("fails_without_message"))

    assert outcome.error is not None
    assert (outcome.error["type"], outcome.error["blame"]) == ("Unprintable", "handler")
    assert "Unprintable" in outcome.error["message"]
    assert len(harness.idle_pids) == 1


@pytest.mark.requirement("E12")
async def test_invalid_params_and_invalid_outputs_are_distinguished(harness: Harness) -> None:
    params = (await harness.run(a_task("sleep_blocking", seconds="long"))).error
    output = (await harness.run(a_task("return_nan"))).error

    assert params is not None
    assert (params["blame"], params["code"]) == ("data", "params.invalid")
    assert "params.seconds" in params["message"]
    assert output is not None
    assert (output["blame"], output["code"]) == ("handler", "handler.bad-output")
    assert "output.mean is nan" in output["message"]


@pytest.mark.requirement("E18")
async def test_large_outputs_are_accepted_and_too_large_outputs_refused(harness: Harness) -> None:
    fine = await harness.run(a_task("big", megabytes=60))
    too_large = await harness.run(a_task("big", megabytes=101))

    # The worker passes the JSON on without decoding it.
    assert (fine.output, bytes(fine.encoded or b"")) == (None, b'"' + b"x" * 60 * 1024 * 1024 + b'"')
    assert too_large.error is not None
    assert too_large.error["code"] == "handler.output-too-large"


@pytest.mark.requirement("E18")
async def test_encoding_an_output_does_not_count_towards_the_memory_limit(harness: Harness) -> None:
    """orjson needs more memory than the output itself, and crashes if it gets none."""
    fine = await harness.run(a_task("big", megabytes=90), memory_mb=256)
    too_large = await harness.run(a_task("big", megabytes=120), memory_mb=512)

    assert fine.error is None
    assert len(fine.encoded or b"") == 90 * 1024 * 1024 + 2
    assert too_large.error is not None
    assert (too_large.error["code"], too_large.error["blame"]) == ("handler.output-too-large", "handler")
    assert "at least 125,829,122 bytes, more than the 104,857,600 allowed" in too_large.error["message"]


@pytest.mark.requirement("H1")
async def test_the_error_of_a_crash_by_signal_names_the_memory_limit(harness: Harness) -> None:
    outcome = await harness.run(a_task("segfault"), memory_mb=512)
    other = await harness.run(a_task("crash", exit_code=13), memory_mb=512)

    assert outcome.error is not None
    assert re.search(r"killed by sig\S* 11", outcome.error["message"])
    assert "its limit is 512 MB" in outcome.error["hint"]
    assert other.error is not None
    assert "hint" not in other.error


@pytest.mark.requirement("E22")
async def test_a_later_attempt_continues_from_a_checkpoint(harness: Harness, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    crashed = asyncio.create_task(harness.run(a_task("multi_phase", phases=4, seconds_per_phase=0.3)))
    await until(lambda: len(harness.ledger.checkpoints) == 2)
    crashed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await crashed

    outcome = await harness.run(a_task("multi_phase", attempt=2, phases=4, seconds_per_phase=0))

    assert outcome.output["phases_run"] == ["phase_3", "phase_4"]
    assert outcome.output["resumed_after"] == "phase_2"


@pytest.mark.requirement("E22")
async def test_a_checkpoint_whose_artifact_has_changed_is_skipped_and_reported(
    harness: Harness, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    crashed = asyncio.create_task(harness.run(a_task("multi_phase", phases=4, seconds_per_phase=0.3)))
    await until(lambda: len(harness.ledger.checkpoints) == 2)
    crashed.cancel()
    await asyncio.wait([crashed])
    (file,) = tmp_path.rglob("phase_2")
    file.write_text(file.read_text()[::-1])

    task = a_task("multi_phase", attempt=2, phases=4, seconds_per_phase=0)
    outcome = await harness.run(task, context := harness.context(task))

    assert outcome.output["resumed_after"] == "phase_1"
    assert outcome.output["phases_run"] == ["phase_2", "phase_3", "phase_4"]
    (line,) = context.log_lines() or ()
    assert (line["level"], "checkpoint=phase_2" in line["text"], "sha256" in line["text"]) == ("warning", True, True)


@pytest.mark.requirement("E22")
async def test_a_plain_handler_that_was_asked_to_stop_ends_when_it_saves_a_checkpoint(harness: Harness) -> None:
    """The handler never checks its flags, but saves checkpoints."""
    context = harness.context(task := a_task("saves_repeatedly"))
    running = asyncio.create_task(harness.run(task, context))
    await until(lambda: len(harness.ledger.checkpoints) > 0)

    context.shut_down()
    outcome = await asyncio.wait_for(running, 10)

    assert outcome.status is TaskStatus.RETURNED
    assert not context.cancelled


@pytest.mark.requirement("E22")
async def test_a_checkpoint_of_an_attempt_that_lost_its_task_is_refused(harness: Harness) -> None:
    harness.ledger.refuses_checkpoints = True

    outcome = await harness.run(a_task("saves_plain"))

    assert outcome.error is not None
    assert outcome.error["code"] == "fenced"


# The fields of each kind of frame, other than `kind`.
FRAMES = {
    "start": "path crash_point",
    "ready": "pid",
    "run": "handler target memory_mb task_id job_id node_id attempt retry_count params traceparent",
    "ask": "id task verb phase skip page",
    "answer": "id value error code type",
    "progress": "task progress",
    "log": "task level event facts",
    "flush": "",
    "shutdown": "",
    "done": "task is_reusable metrics output",
    "failed": "task is_reusable metrics error",
    "returned": "task is_reusable metrics",
}


async def test_the_names_of_frames_and_fields_do_not_change(harness: Harness, monkeypatch, tmp_path: Path) -> None:
    """While a release is installed over another one, a worker of the old release starts children from the new code."""
    fields: dict[str, set[str]] = {}

    def note(frame: dict[str, Any]) -> None:
        fields.setdefault(frame["kind"], set()).update(frame.keys() - {"kind"})

    async def receive(child: Child) -> tuple[dict[str, Any], int]:
        frame, size = await original_receive(child)
        note(frame)
        return frame, size

    def write(child: Child, frame: dict[str, Any]) -> None:
        note(frame)
        original_write(child, frame)

    original_receive, original_write = Child.receive, Child.write
    monkeypatch.setattr(Child, "receive", receive)
    monkeypatch.setattr(Child, "write", write)
    monkeypatch.setattr("dagmaster.worker.child_run.SAMPLE_SECONDS", 0.01)
    await harness.run(a_task("saves_plain"))
    harness.ledger.refuses_checkpoints = True
    await harness.run(a_task("saves_plain"))
    harness.ledger.results = [ChildResult(0, "f__0", "completed", 0)]
    await harness.run(a_task("results", results_of={"node_id": "f", "offset": 0, "limit": 1}))
    await harness.run(a_task("print_and_log"))
    context = harness.context(waiting := a_task("poll_flags", note=str(tmp_path / "note")))
    running = asyncio.create_task(harness.run(waiting, context))
    await until(lambda: {"progress", "flush"} <= fields.keys())
    context.shut_down()
    await running

    assert fields == {kind: set(names.split()) for kind, names in FRAMES.items()}


@pytest.mark.requirement("W7")
async def test_a_plain_handler_streams_results_by_reference(harness: Harness) -> None:
    harness.ledger.results = [ChildResult(i, f"f__{i}", "completed", i * 10) for i in range(8)]

    outcome = await harness.run(a_task("results", results_of={"node_id": "f", "offset": 2, "limit": 5}))
    refused = await harness.run(a_task("results"))

    assert outcome.output == [[i, i * 10] for i in range(2, 7)]
    assert refused.error is not None
    assert refused.error["code"] == "params.no-results-of"


@pytest.mark.requirement("E14")
async def test_a_cancelled_handler_is_notified_and_stops_at_its_next_check(harness: Harness, tmp_path: Path) -> None:
    task = a_task("poll_flags", note=str(tmp_path / "note"))
    context = harness.context(task)
    running = asyncio.create_task(harness.run(task, context))
    await until(lambda: context.running().progress)

    context.cancel()

    assert (await running).status is TaskStatus.RETURNED
    assert (tmp_path / "note").read_text() == "cancelled=True shutting_down=False"
    assert len(harness.idle_pids) == 1, "the child is reused"


@pytest.mark.requirement("E14")
async def test_a_cancelled_handler_that_never_checks_is_killed_after_its_grace_period(harness: Harness) -> None:
    await harness.run(a_task("pid"))
    (pid,) = harness.idle_pids
    task = a_task("hang")
    context = harness.context(task)
    running = asyncio.create_task(harness.run(task, context))
    await asyncio.sleep(0.1)
    started = time.monotonic()

    context.cancel()

    assert (await running).status is TaskStatus.RETURNED
    assert 0.25 < time.monotonic() - started < 2
    assert not is_alive(pid)


@pytest.mark.requirement("E14")
async def test_requests_to_stop_while_the_child_starts_are_not_lost(harness: Harness, tmp_path: Path) -> None:
    task = a_task("poll_flags", note=str(tmp_path / "note"))
    context = harness.context(task)
    context.shut_down()

    outcome = await harness.run(task, context)

    assert outcome.status is TaskStatus.RETURNED
    assert (tmp_path / "note").read_text() == "cancelled=False shutting_down=True"


class RecordingContext(TaskContext):
    """Counts the progress reports and log lines that reach the worker."""

    __slots__ = ("count",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.count = 0

    def show_progress(self, facts: dict[str, Any]) -> None:
        self.count += 1
        super().show_progress(facts)

    def log(self, *args: Any) -> None:
        self.count += 1
        super().log(*args)


def recording(harness: Harness, task: TaskMessage) -> RecordingContext:
    return RecordingContext(task, harness.ledger)


@pytest.mark.requirement("E23")
async def test_frequent_progress_is_throttled_and_the_latest_value_is_kept(harness: Harness) -> None:
    task = a_task("reports_much", timeout=20)
    context = recording(harness, task)
    started = time.monotonic()

    outcome = await harness.run(task, context)

    assert outcome.error is None
    assert context.count <= 3 + 11 * (time.monotonic() - started)
    assert context.running().progress == {"fraction": 0.999995, "done": 200_000}


@pytest.mark.requirement("E23")
async def test_delayed_progress_is_reported_while_the_handler_continues(harness: Harness) -> None:
    task = a_task("reports_twice_and_waits")
    context = recording(harness, task)
    running = asyncio.create_task(harness.run(task, context))

    await until(lambda: context.running().progress == {"fraction": 0.2}, 5)

    context.cancel()
    assert (await running).status is TaskStatus.RETURNED


@pytest.mark.requirement("H1")
async def test_the_last_of_too_many_log_lines_are_kept(harness: Harness) -> None:
    task = a_task("logs_much", timeout=20)
    context = recording(harness, task)
    started = time.monotonic()

    outcome = await harness.run(task, context)

    lines = context.log_lines()
    assert outcome.error is None
    assert lines is not None
    assert context.count <= 300 + 310 * (time.monotonic() - started)
    assert lines[-1]["text"] == "line number=19999"
    assert lines[-100]["text"] == "line number=19900"


@pytest.mark.requirement("H1")
async def test_a_log_line_with_invalid_unicode_is_logged_with_replacements(harness: Harness) -> None:
    task = a_task("logs_oddly")
    context = recording(harness, task)

    outcome = await harness.run(task, context)

    assert outcome.error is None
    assert "not Unicode" in str(context.log_lines())


WORKER_THAT_HANGS = """
import asyncio, sys
sys.path.insert(0, {folder!r})
from test_process_pool import Harness
from worker_fakes import a_task
asyncio.run(Harness().run(a_task("daemonize", note={note!r})))
"""


@pytest.mark.requirement("H1")
async def test_no_child_process_survives_a_killed_worker(tmp_path: Path) -> None:
    script = WORKER_THAT_HANGS.format(folder=str(Path(__file__).parent), note=str(tmp_path / "note"))
    worker = subprocess.Popen([sys.executable, "-c", script])
    pids = await note(tmp_path / "note")
    assert all(map(is_alive, pids))

    worker.kill()
    worker.wait()

    await until(lambda: not any(map(is_alive, pids)), 5)
