"""`run_handler`: one handler, called as a worker calls it."""

import asyncio
import os
import time
from typing import Any

import pytest
from pydantic import BaseModel, Field

from dagmaster.errors import HandlerFailed, NotFound, Unavailable, UnfitData
from dagmaster.handlers.context import HandlerResult
from dagmaster.handlers.registry import register_handler
from dagmaster.jobs.fan import ChildResult
from dagmaster.testing import run_handler


class Box(BaseModel):
    width: float = Field(gt=0)
    height: float


class Area(BaseModel):
    square_metres: float


@register_handler("tests.area", timeout_seconds=5)
async def area(_ctx: Any, box: Box) -> Area:
    return Area(square_metres=box.width * box.height)


def plain_area(_ctx: Any, box: Box) -> Area:
    return Area(square_metres=box.width * box.height)


@pytest.mark.parametrize("handler", [area, plain_area])
@pytest.mark.parametrize("params", [{"width": 2, "height": 3}, Box(width=2, height=3)])
def test_the_output_is_converted_as_if_it_were_stored(handler, params):
    trial = run_handler(handler, params)

    assert trial.status == "succeeded"
    assert trial.output == {"square_metres": 6.0}
    assert trial.error is None
    assert trial.blame is None


def test_an_installed_handler_is_found_by_its_name():
    assert run_handler("hello_world", {"name": "Ada"}).output == {"message": "Hello, Ada!"}
    with pytest.raises(NotFound):
        run_handler("no_such_handler")


@pytest.mark.parametrize("handler", [area, plain_area])
def test_invalid_params_are_blamed_on_the_data(handler):
    trial = run_handler(handler, {"width": 0, "height": 3})

    assert (trial.status, trial.blame, trial.error["code"]) == ("failed", "data", "params.invalid")
    assert "params.width" in trial.error["message"]


@pytest.mark.parametrize(
    ("error", "blame"),
    [
        (UnfitData("x"), "data"),
        (Unavailable("x"), "environment"),
        (ConnectionResetError("x"), "environment"),
        (HandlerFailed("x"), "handler"),
        (KeyError("x"), "handler"),
    ],
)
def test_errors_have_the_same_blame_as_in_a_worker(error, blame):
    def raises(_ctx):
        raise error

    async def raises_async(_ctx):
        raise error

    assert run_handler(raises).blame == blame
    assert run_handler(raises_async).blame == blame


def test_reading_the_output_of_a_failed_handler_raises_its_error():
    def raises(_ctx):
        raise ValueError("seven is not a prime")

    with pytest.raises(AssertionError, match=r"failed: Traceback(.|\n)*seven is not a prime"):
        _ = run_handler(raises).output


def test_output_that_cannot_be_stored_is_refused():
    def returns_nan(_ctx):
        return {"mean": float("nan")}

    assert "output.mean is nan" in run_handler(returns_nan).error["message"]


def test_metrics_and_logs_are_kept():
    def report(ctx):
        ctx.logger.info("tile written", bytes=12)
        return HandlerResult(output=1, metrics={"tiles": 3})

    trial = run_handler(report)

    assert trial.metrics["tiles"] == 3
    assert trial.log == ["info: tile written bytes=12"]


def test_all_progress_reports_are_kept():
    async def report_progress(ctx):
        ctx.progress(0.5, "half", tiles=1)
        ctx.progress(2.0)

    assert run_handler(report_progress).progress == [
        {"tiles": 1, "fraction": 0.5, "message": "half"},
        {"fraction": 1.0},
    ]


def test_checkpoints_are_loaded_and_saved():
    def phases(ctx):
        last = ctx.load_checkpoint(lambda _name, data: data["good"])
        ctx.save_checkpoint("third", {"good": True})
        return last

    async def phases_async(ctx):
        last = await ctx.load_checkpoint(lambda _name, data: data["good"])
        await ctx.save_checkpoint("third", {"good": True})
        return last

    before = {"first": {"good": True}, "second": {"good": False}}
    for handler in (phases, phases_async):
        trial = run_handler(handler, checkpoints=before, attempt=2)
        assert trial.output == ["first", {"good": True}]
        assert trial.checkpoints == {**before, "third": {"good": True}}


def test_the_last_of_several_checkpoints_is_loaded():
    def last(ctx):
        return ctx.load_checkpoint()[0]

    assert run_handler(last, checkpoints={"z": 1, "a": 2}).output == "a"


def test_results_are_streamed():
    def all_rows(ctx):
        return [(row.index, row.status, row.output, row.error_message) for row in ctx.results(page=2)]

    async def all_rows_async(ctx):
        return [(row.index, row.status, row.output, row.error_message) async for row in ctx.results(page=2)]

    given = [{"v": 3}, ChildResult(1, "n__1", "failed", None, "it broke"), 5]
    for handler in (all_rows, all_rows_async):
        assert run_handler(handler, results=given).output == [
            [0, "completed", {"v": 3}, None],
            [1, "failed", None, "it broke"],
            [2, "completed", 5, None],
        ]


@pytest.mark.parametrize(("flag", "status"), [("cancelled", "cancelled"), ("shutting_down", "returned")])
def test_a_flag_is_set_after_a_given_number_of_checks(flag, status):
    def work_in_steps(ctx):
        for step in range(10):
            if getattr(ctx, flag):
                raise ctx.give_back()
            ctx.progress(step / 10)

    assert run_handler(work_in_steps).status == "succeeded"
    stopped = run_handler(work_in_steps, **{f"{flag}_after": 3})
    assert stopped.status == status
    assert len(stopped.progress) == 3
    assert run_handler(work_in_steps, **{f"{flag}_after": 0}).progress == []


def test_giving_back_without_a_request_is_a_failure():
    def give_back(ctx):
        raise ctx.give_back()

    assert run_handler(give_back).error["code"] == "handler.gave-back"


def test_time_is_virtual_and_the_timeout_is_enforced():
    async def sleeps(_ctx):
        await asyncio.sleep(3000)

    started = time.monotonic()
    assert run_handler(sleeps).metrics["seconds"] == 3000
    assert run_handler(sleeps, timeout_seconds=100).error["code"] == "handler.timed-out"
    assert time.monotonic() - started < 2


def test_the_timeout_of_a_registration_is_enforced():
    @register_handler("tests.short", timeout_seconds=5)
    async def sleeps(_ctx):
        await asyncio.sleep(6)

    assert run_handler(sleeps).error["code"] == "handler.timed-out"


def test_the_attempt_number_is_passed_to_the_handler():
    def report(ctx):
        return [ctx.attempt, ctx.retry_count, ctx.node_id]

    assert run_handler(report, attempt=3, node_id="spread__4").output == [3, 2, "spread__4"]


def return_pid(ctx):
    ctx.progress(0.5)
    ctx.save_checkpoint("here", os.getpid())
    return os.getpid()


def test_a_handler_can_run_in_a_separate_process():
    trial = run_handler(return_pid, isolate=True)

    assert trial.output != os.getpid()
    assert trial.checkpoints == {"here": trial.output}
    assert trial.progress == [{"fraction": 0.5}]
    with pytest.raises(ValueError, match="isolate"):
        run_handler(return_pid, isolate=True, cancelled_after=1)


def test_there_is_no_database():
    def connects(ctx):
        ctx.connect()

    async def queries(ctx):
        async with ctx.database.connection():
            pass

    for handler in (connects, queries):
        assert run_handler(handler).error["code"] == "worker.no-database"


def lines(ctx: Any) -> list[str]:
    return ["a line"] * ctx.params["count"]


async def lines_async(ctx: Any) -> list[str]:
    return ["a line"] * ctx.params["count"]


@pytest.mark.requirement("E18")
@pytest.mark.parametrize("handler", [lines, lines_async])
def test_an_output_that_is_stored_by_reference_can_be_read(handler):
    trial = run_handler(handler, {"count": 50_000})

    assert trial.report.output_ref is not None
    assert trial.output == ["a line"] * 50_000
