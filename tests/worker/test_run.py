"""From a task to its report: the blame of errors, and the content of reports."""

import orjson
import pytest
from worker_fakes import FakeLedger, a_registry, a_task, id_of, run_one, until, working
from worker_handlers import Unprintable

from dagmaster.errors import HandlerFailed, InvalidRequest, TimedOut, Unavailable, UnfitData
from dagmaster.handlers.registry import Registration
from dagmaster.jobs.payload import INLINE_BYTES, reference_to
from dagmaster.jobs.states import Blame, TaskStatus
from dagmaster.worker.outcome import MAX_TRACEBACK, blame_of, describe
from dagmaster.worker.reported import progress, text


@pytest.mark.requirement("E12")
@pytest.mark.parametrize(
    ("error", "blame"),
    [
        (UnfitData("no CRS"), Blame.DATA),
        (InvalidRequest("no such band"), Blame.DATA),
        (Unavailable("503"), Blame.ENVIRONMENT),
        (ConnectionResetError("peer"), Blame.ENVIRONMENT),
        (TimeoutError("slow"), Blame.ENVIRONMENT),
        (OSError(28, "No space left on device"), Blame.ENVIRONMENT),
        (FileNotFoundError(2, "No such file"), Blame.HANDLER),
        (TimedOut("3600 s"), Blame.HANDLER),
        (MemoryError(), Blame.HANDLER),
        (ZeroDivisionError(), Blame.HANDLER),
    ],
)
def test_the_blame_follows_from_the_type_of_the_error(error: Exception, blame: Blame) -> None:
    assert blame_of(error) is blame


@pytest.mark.requirement("H1")
async def test_the_report_of_an_async_handler_has_output_and_seconds() -> None:
    report = await run_one(a_task("echo", x=1))

    assert report.status is TaskStatus.SUCCEEDED
    assert report.output == {"echoed_params": {"x": 1}}
    assert report.metrics is not None
    assert report.metrics["seconds"] >= 0


@pytest.mark.requirement("E12")
@pytest.mark.parametrize("blame", ["data", "environment", "handler"])
async def test_a_failed_report_names_blame_code_type_and_traceback(blame: str) -> None:
    report = await run_one(a_task("fail", message="no good", blame=blame))

    assert report.status is TaskStatus.FAILED
    assert report.error is not None
    assert (report.error["message"], report.error["blame"]) == ("no good", blame)
    assert report.error["code"] in {"data.unfit", "unavailable", "handler.failed"}
    assert "examples.py" in report.error["traceback"]


@pytest.mark.requirement("E12")
@pytest.mark.parametrize(
    ("handler", "blame", "code"),
    [
        ("own_timeout", "environment", "environment.failed"),
        ("disk_full", "environment", "environment.failed"),
        ("sys_exit", "handler", "handler.failed"),
        ("interrupts", "handler", "handler.failed"),
        ("raises_base_exception", "handler", "handler.failed"),
        ("exits_generator", "handler", "handler.failed"),
        ("fails_without_message_async", "handler", "handler.failed"),
        ("give_back_unasked", "handler", "handler.gave-back"),
        ("cancels_itself", "handler", "handler.cancelled"),
        ("size_check", "data", "params.invalid"),
    ],
)
async def test_every_failure_of_a_handler_is_reported_with_blame_and_code(handler: str, blame: str, code: str) -> None:
    report = await run_one(a_task(handler))

    assert report.error is not None
    assert (report.error["blame"], report.error["code"]) == (blame, code)


@pytest.mark.requirement("E12")
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SystemExit(3), "the handler called sys.exit(3)"),
        (SystemExit("no input"), "the handler called sys.exit('no input')"),
        (SystemExit(), "the handler called sys.exit()"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Unprintable(), "Unprintable (cannot be converted to text: RuntimeError)"),
        (HandlerFailed(Unprintable()), "Unprintable (cannot be converted to text: RuntimeError)"),  # type: ignore[arg-type]
        (HandlerFailed(404), "404"),  # type: ignore[arg-type]
    ],
)
def test_every_error_has_a_message(error: BaseException, message: str) -> None:
    error_facts = describe(error)

    assert (error_facts["message"], error_facts["blame"], error_facts["type"]) == (
        message,
        "handler",
        type(error).__qualname__,
    )


@pytest.mark.requirement("E10")
async def test_an_async_handler_is_stopped_after_its_timeout() -> None:
    report = await run_one(a_task("sleep", timeout=0.15, seconds=60))

    assert report.error is not None
    assert (report.error["code"], report.error["blame"]) == ("handler.timed-out", "handler")


@pytest.mark.requirement("E10")
async def test_a_handler_that_ignores_its_timeout_is_reported_as_timed_out() -> None:
    report = await run_one(a_task("stubborn", timeout=0.1, seconds=0.4))

    assert report.error is not None
    assert report.error["code"] == "handler.timed-out"


@pytest.mark.requirement("X3")
async def test_tracebacks_are_limited_and_contain_no_secret() -> None:
    report = await run_one(a_task("secretive"))

    assert report.error is not None
    assert "hunter2" not in str(report.error)
    assert len(report.error["traceback"]) <= MAX_TRACEBACK
    assert len(report.error["message"]) <= 4000


@pytest.mark.requirement("X3")
def test_truncation_never_reveals_a_secret() -> None:
    for limit in range(20, 80):
        assert "hunter2" not in text("x" * 30 + " https://me:hunter2@host/ " + "y" * 30, limit)
        assert "hunter2" not in text("x" * 30 + " https://me:hunter2@host/ " + "y" * 30, limit, keep_end=True)


@pytest.mark.requirement("H1")
async def test_the_last_log_lines_of_an_attempt_are_kept_without_secrets() -> None:
    report = await run_one(a_task("logs"))

    assert report.metrics is not None
    lines = report.metrics["log"]
    assert [line["number"] for line in lines] == list(range(52, 152))
    assert "number=149" in lines[-2]["text"]
    assert lines[-1]["level"] == "error"
    assert lines[-1]["text"].startswith("it broke")
    assert "ValueError" in lines[-1]["text"]
    assert lines[0]["at"] <= lines[-1]["at"]
    assert "hunter2" not in str(lines)


@pytest.mark.requirement("H1")
async def test_a_handler_that_cannot_be_loaded_is_no_longer_offered() -> None:
    broken = a_task("broken", "a")
    registry = a_registry(
        Registration("broken", "no_such_module:f"), Registration("gone", "worker_handlers:gone", False)
    )
    unloadable = a_task("gone", "b")
    async with working(broken, unloadable, registry=registry) as bench:
        for task in (broken, unloadable):
            report = await bench.report_of(task)
            assert report.error is not None
            assert (report.error["blame"], report.error["code"]) == ("environment", "handler.unloadable")
        bench.add(a_task("broken", "c"), fine := a_task("echo", "d"))
        await bench.report_of(fine)

        assert [task.handler for task in bench.ledger.queued] == ["broken"]
        assert "gone" not in bench.worker.info().handlers


@pytest.mark.requirement("E22")
async def test_a_refused_checkpoint_ends_the_attempt() -> None:
    async with working(registry=a_registry()) as bench:
        bench.ledger.refuses_checkpoints = True
        bench.add(task := a_task("saves"))

        report = await bench.report_of(task)

    assert report.error is not None
    assert report.error["code"] == "fenced"


@pytest.mark.requirement("E18")
async def test_a_large_output_is_stored_before_it_is_reported() -> None:
    text = "x" * INLINE_BYTES
    async with working(task := a_task("echo", text=text)) as bench:
        report = await bench.report_of(task)

    assert (report.status, report.output) == (TaskStatus.SUCCEEDED, None)
    content = bench.ledger.payloads[report.output_ref["sha256"]]
    assert report.output_ref == reference_to(content)
    assert orjson.loads(content)["echoed_params"] == {"text": text}


@pytest.mark.requirement("E18")
async def test_large_params_are_loaded_before_the_handler_is_called() -> None:
    content = orjson.dumps({"text": "from afar"})
    task = a_task("echo")._replace(params_ref=reference_to(content))
    async with working() as bench:
        bench.ledger.payloads[reference_to(content)["sha256"]] = content
        bench.add(task)
        report = await bench.report_of(task)

    assert report.output["echoed_params"] == {"text": "from afar"}


@pytest.mark.requirement("E18")
@pytest.mark.parametrize("kind", ["output", "params"])
async def test_an_outage_while_a_payload_is_stored_or_loaded_does_not_fail_the_attempt(kind: str) -> None:
    """Only the ledger of handlers is unavailable: leases are renewed meanwhile, and the report is sent afterwards."""
    content = orjson.dumps({"text": "x" * INLINE_BYTES})
    params = {"text": "x" * INLINE_BYTES} if kind == "output" else {}
    task = a_task("echo", **params)._replace(params_ref=reference_to(content) if kind == "params" else None)
    payload_ledger = FakeLedger()
    payload_ledger.payloads[reference_to(content)["sha256"]] = content
    payload_ledger.is_down = True
    async with working(lease_renew_sec=0.05, task_lease_sec=1.0) as bench:
        bench.worker._payloads_of = lambda _task: payload_ledger
        bench.add(task)
        await bench.is_running(task)
        await until(lambda: sum(task.task_id in map(id_of, held) for held in bench.ledger.renewals) >= 3)
        assert not bench.ledger.reports

        payload_ledger.is_down = False
        report = await bench.report_of(task)

    assert (report.status, report.attempt) == (TaskStatus.SUCCEEDED, 1)
    assert report.output_ref == reference_to(payload_ledger.payloads[report.output_ref["sha256"]])


@pytest.mark.requirement("E18")
async def test_a_worker_that_stops_while_a_payload_cannot_be_stored_gives_the_task_back() -> None:
    payload_ledger = FakeLedger()
    payload_ledger.is_down = True
    async with working() as bench:
        bench.worker._payloads_of = lambda _task: payload_ledger
        bench.add(task := a_task("echo", text="x" * INLINE_BYTES))
        await bench.is_running(task)
        bench.worker.stop(grace_seconds=0.05)
        report = await bench.report_of(task)

    assert report.status is TaskStatus.RETURNED


@pytest.mark.requirement("E12", "H1")
@pytest.mark.parametrize("handler", ["hostile_reports", "hostile_reports_async"])
async def test_a_report_with_invalid_values_is_stored_with_the_error_of_the_handler(handler: str) -> None:
    """The blame is still the data, so that it is not retried as a failure of the environment."""
    report = await run_one(a_task(handler))

    assert report.status is TaskStatus.FAILED
    assert report.error is not None
    assert report.error["blame"] == Blame.DATA.value
    assert report.error["message"] == "the band is ? empty\N{REPLACEMENT CHARACTER}"
    stored = orjson.dumps([report.error, report.metrics])
    assert len(stored) < 100_000
    assert b"\\u0000" not in stored
    assert report.error["code"].startswith("raster.?\N{REPLACEMENT CHARACTER}ccc")


def test_progress_is_reduced_to_values_that_can_be_stored() -> None:
    assert progress(float("nan"), None, {"a": float("inf"), "b": True, "c": 1 << 70, "d": 2.5}) == {
        "a": None,
        "b": True,
        "c": str(1 << 70),
        "d": 2.5,
    }
    assert progress(7, "x\x00\ud800", {}) == {"fraction": 1.0, "message": "x\N{REPLACEMENT CHARACTER}?"}
    assert progress(True, None, {"x": "y" * 5000}) == {"dropped": "counts of more than 4,096 bytes", "fraction": 1.0}
