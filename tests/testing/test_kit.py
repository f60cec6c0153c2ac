"""The kit runs complete jobs on the real engine in memory: waits of hours, lost workers and failures in moments."""

import asyncio
import os
import time

import pytest
from pydantic import BaseModel

from dagmaster.errors import HandlerFailed, InvalidWorkflow, NotFound, Unavailable, UnfitData
from dagmaster.testing import Kit, virtual_time

HOUR = 3600.0


def workflow(task, name="tried"):
    """A workflow with one task `work` between start and end."""
    return f"""
workflow_id: {name}
timeout_seconds: 604800
inputs: {{value: {{type: integer, default: 1}}}}
nodes:
  start: {{type: start, next: work}}
  work: {{{task}, next: end}}
  end: {{type: end}}
outputs: {{answer: "{{{{ nodes.work.output }}}}"}}
"""


SLOW_RETRIES = workflow(
    "handler: work, params: {value: '{{ inputs.value }}'},"
    " retry: {max_attempts: 3, initial_delay_seconds: 3600, max_delay_seconds: 90000, jitter: false}"
)


async def double(ctx):
    return ctx.params["value"] * 2


@virtual_time
async def test_a_job_runs_with_its_inputs():
    async with Kit(workflows=[SLOW_RETRIES], handlers={"work": double}) as kit:
        job = await kit.run("tried", {"value": 21})

    job.expect("completed", result={"answer": 42}, nodes={"work": "completed"}, attempts={"work": 1})
    assert job.output("work") == 42


@virtual_time
async def test_a_stand_in_replaces_an_installed_handler():
    async def stand_in(_ctx):
        return {"message": "not the real one"}

    async with Kit(handlers={"hello_world": stand_in}) as kit:
        job = await kit.run("hello_world")

    assert "not the real one" in str(job.expect().result)


@virtual_time
async def test_installed_workflows_can_be_run_directly():
    async with Kit() as kit:
        job = await kit.run("fan_out_test", {"count": 50})

    assert len([name for name in job.expect().nodes if "__" in name]) == 50


@virtual_time
async def test_backoff_of_hours_takes_moments():
    started = time.monotonic()

    async with Kit(workflows=[SLOW_RETRIES], handlers={"work": double}) as kit:
        kit.fail("work", HandlerFailed("not yet"))
        kit.fail("work", HandlerFailed("not yet"), attempt=2)
        kit.fail("work", ZeroDivisionError("not yet"), attempt=3)
        job = await kit.run("tried")

    job.expect(attempts={"work": 4}, events=["node_failed", "node_retried", "node_failed", "node_completed"])
    assert job.seconds == pytest.approx((1 + 2 + 4) * HOUR, abs=1)
    assert time.monotonic() - started < 5


@virtual_time
async def test_failures_blamed_on_the_data_are_not_retried():
    async with Kit(workflows=[SLOW_RETRIES], handlers={"work": double}) as kit:
        kit.fail("work", UnfitData("no CRS"))
        job = await kit.run("tried")

    job.expect("failed", nodes={"work": "failed", "end": "skipped"}, attempts={"work": 1})


@virtual_time
async def test_failures_blamed_on_the_environment_use_up_no_retry():
    async with Kit(workflows=[SLOW_RETRIES], handlers={"work": double}) as kit:
        for attempt in (1, 2, 3, 4):
            kit.fail("work", Unavailable("503"), attempt=attempt)
        job = await kit.run("tried")

    job.expect(attempts={"work": 5})
    assert (job.nodes["work"].loss_count, job.nodes["work"].retry_count) == (4, 0)


@virtual_time
async def test_a_handler_past_its_timeout_is_stopped():
    seen = []

    async def slow_at_first(ctx):
        seen.append(ctx.attempt)
        await asyncio.sleep(2 * HOUR if ctx.attempt == 1 else 0)

    text = workflow("handler: work, timeout_seconds: 3600, retry: {max_attempts: 1, jitter: false}")
    async with Kit(workflows=[text], handlers={"work": slow_at_first}) as kit:
        job = await kit.run("tried")

    job.expect(attempts={"work": 2})
    assert seen == [1, 2]
    assert HOUR < job.seconds < 1.5 * HOUR


@virtual_time
async def test_a_job_past_its_deadline_is_ended():
    text = SLOW_RETRIES.replace("timeout_seconds: 604800", "timeout_seconds: 5400")
    async with Kit(workflows=[text], handlers={"work": double}) as kit:
        kit.fail("work", HandlerFailed("not yet"))
        kit.fail("work", HandlerFailed("not yet"), attempt=2)
        job = await kit.run("tried")

    job.expect("failed", attempts={"work": 2})
    assert 5400 <= job.seconds < 5400 + 120


@virtual_time
async def test_the_task_of_a_lost_worker_is_run_by_another():
    ran_by = []

    async def work(ctx):
        ran_by.append(ctx.attempt)
        return ctx.attempt

    async with Kit(workflows=[SLOW_RETRIES], handlers={"work": work}) as kit:
        kit.lose_worker("work")
        job = await kit.run("tried")

    job.expect(result={"answer": 2}, attempts={"work": 2})
    lost, done = job.attempts("work")
    assert lost.worker_id != done.worker_id
    assert ran_by == [2]
    assert (job.nodes["work"].loss_count, job.nodes["work"].retry_count) == (1, 0)
    assert job.seconds >= kit.settings.task_lease_sec


@virtual_time
async def test_all_tasks_of_a_lost_worker_are_lost():
    stopped = []

    async def work(ctx):
        try:
            await asyncio.sleep(10 * HOUR)
        except asyncio.CancelledError:
            stopped.append(ctx.attempt)
            raise

    async with Kit(workflows=[SLOW_RETRIES, workflow("handler: noop", "other")], handlers={"work": work}) as kit:
        first = await kit.submit("tried")
        await kit.until(lambda: kit.job(first).nodes["work"].status == "running")
        kit.lose_worker("work")  # for the other job, whose node has the same name
        (await kit.run("other")).expect(attempts={"work": 2})
        assert stopped == [1]


@virtual_time
async def test_plain_handlers_run_in_this_process_and_keep_their_checkpoints():
    def count(ctx):
        last = ctx.load_checkpoint()
        done = last[1] if last else 0
        ctx.save_checkpoint("counted", done + 1)
        ctx.progress(0.5)
        if ctx.attempt < 3:
            raise HandlerFailed("again")
        return {"counted": done + 1, "pid": os.getpid()}

    async with Kit(workflows=[SLOW_RETRIES], handlers={"work": count}) as kit:
        job = await kit.run("tried")

    assert job.expect().output("work") == {"counted": 3, "pid": os.getpid()}


def return_pid(ctx):
    if ctx.attempt == 1:
        raise HandlerFailed(f"process {os.getpid()} fails in its first attempt")
    return os.getpid()


def use_400_mb(_ctx):
    return len(bytearray(400 * 1024 * 1024))


@virtual_time
async def test_isolated_plain_handlers_work_with_virtual_time():
    async with Kit(workflows=[SLOW_RETRIES], handlers={"work": return_pid}, isolate=True) as kit:
        job = await kit.run("tried")

    assert job.expect(attempts={"work": 2}).output("work") != os.getpid()
    assert job.seconds > HOUR


@virtual_time
async def test_isolated_handlers_have_their_memory_limit():
    text = workflow("handler: work, retry: {max_attempts: 0}")
    async with Kit(workflows=[text], handlers={"work": use_400_mb}, isolate=True, worker_memory_mb=200) as kit:
        job = await kit.run("tried")

    job.expect("failed")
    assert job.nodes["work"].error["code"] == "handler.out-of-memory"


@virtual_time
async def test_several_orchestrators_and_workers_share_the_work():
    text = f"""
workflow_id: many
nodes:
  start: {{type: start, next: spread}}
  spread:
    type: fan_out
    source: {list(range(300))}
    task: {{handler: work, params: {{value: "{{{{ item }}}}"}}}}
    next: gather
  gather: {{type: fan_in, next: end}}
  end: {{type: end}}
outputs: {{total: "{{{{ nodes.gather.output.results | sum }}}}"}}
"""

    async def work(ctx):
        await asyncio.sleep(60)
        return ctx.params["value"]

    async with Kit(workflows=[text], handlers={"work": work}, orchestrators=2, workers=3) as kit:
        kit.fail("spread__7", HandlerFailed("once"))
        jobs = [await kit.submit("many") for _ in range(2)]
        ended = [await kit.wait(job_id) for job_id in jobs]

    for job in ended:
        job.expect(result={"total": sum(range(300))})
    assert sum(len(job.attempts("spread__7")) for job in ended) == 3
    assert len({task.worker_id for job in ended for task in job.tasks}) == 3


class Tile(BaseModel):
    value: int


@virtual_time
async def test_params_and_output_are_checked_as_by_a_worker():
    async def typed(_ctx, tile: Tile) -> Tile:
        return Tile(value=tile.value + 1)

    text = workflow("handler: typed, params: {value: '{{ inputs.value }}'}", "good")
    bad = workflow("handler: typed, params: {value: many}", "bad")
    async with Kit(workflows=[text, bad], handlers={"typed": typed}) as kit:
        (await kit.run("good")).expect(result={"answer": {"value": 2}})
        job = await kit.run("bad")

    job.expect("failed", attempts={"work": 1})
    assert "params.value" in job.nodes["work"].error["message"]


@virtual_time
async def test_workflows_are_loaded_from_folders_and_files(tmp_path):
    (tmp_path / "one.yaml").write_text(workflow("handler: noop", "one"))
    (tmp_path / "two.yml").write_text(workflow("handler: noop", "two"))

    async with Kit(workflows=[tmp_path]) as kit:
        (await kit.run("one")).expect()
        (await kit.run("two")).expect()
    async with Kit(workflows=[tmp_path / "one.yaml"]) as kit:
        assert "two" not in kit.library.workflows


def test_an_invalid_workflow_is_reported_at_once():
    with pytest.raises(InvalidWorkflow, match="no_such_handler"):
        Kit(workflows=[workflow("handler: no_such_handler")])


async def transcript_of(seed):
    text = workflow("handler: work, retry: {max_attempts: 5, initial_delay_seconds: 3600, max_delay_seconds: 7200}")

    async def fails(ctx):
        if ctx.attempt < 4:
            raise HandlerFailed("again")

    async with Kit(workflows=[text], handlers={"work": fails}, seed=seed) as kit:
        return (await kit.run("tried")).transcript()


def test_the_same_seed_gives_the_same_transcript():
    transcripts = [virtual_time(transcript_of)(seed) for seed in (1, 1, 2)]

    assert transcripts[0] == transcripts[1]
    assert transcripts[0] != transcripts[2]


@virtual_time
async def test_a_wrong_expectation_reports_what_happened_instead():
    async with Kit(workflows=[SLOW_RETRIES], handlers={"work": double}) as kit:
        kit.fail("work", UnfitData("no CRS"))
        job = await kit.run("tried")

    with pytest.raises(AssertionError) as raised:
        job.expect(result=3, nodes={"work": "completed"}, attempts={"work": 2}, events=["node_retried"])

    text = str(raised.value)
    assert "the job is failed, not completed" in text
    assert "its result is None, not 3" in text
    assert "node 'work' is failed, not completed" in text
    assert "node 'work' took 1 attempts, not 2" in text
    assert "no event node_retried" in text
    assert "attempt 1 no CRS" in text


@virtual_time
async def test_events_are_expected_in_their_order():
    async with Kit(workflows=[SLOW_RETRIES], handlers={"work": double}) as kit:
        job = await kit.run("tried")

    job.expect(events=["job_created", "node_completed", "job_completed"])
    with pytest.raises(AssertionError, match="no event job_created"):
        job.expect(events=["job_completed", "job_created"])


@virtual_time
async def test_a_wait_beyond_its_timeout_fails_with_the_transcript():
    async def never(_ctx):
        await asyncio.sleep(100 * HOUR)

    text = workflow("handler: never, timeout_seconds: 604800")
    async with Kit(workflows=[text], handlers={"never": never}) as kit:
        job_id = await kit.submit("tried")
        with pytest.raises(AssertionError, match=r"7200 s of virtual time(.|\n)*node_dispatched"):
            await kit.wait(job_id, timeout_seconds=2 * HOUR)


@virtual_time
async def test_an_unknown_workflow_is_reported_with_the_known_ones():
    async with Kit(workflows=[SLOW_RETRIES], handlers={"work": double}) as kit:
        with pytest.raises(NotFound, match=r"'trid'(.|\n)*tried"):
            await kit.run("trid")


async def test_the_error_without_virtual_time_says_what_to_do():
    with pytest.raises(RuntimeError, match="@virtual_time"):
        async with Kit():
            pass


def test_an_inconsistent_history_is_reported_at_the_end():
    @virtual_time
    async def lose_an_event():
        async with Kit() as kit:
            job = await kit.run("hello_world")
            del kit.database.events[job.row.job_id][3]

    with pytest.raises(AssertionError, match="sequence"):
        lose_an_event()


@pytest.mark.requirement("E18")
@virtual_time
async def test_large_outputs_and_params_are_passed_by_reference():
    async def make(_ctx):
        return ["a line"] * 50_000

    async def count(ctx):
        return len(ctx.params["lines"])

    chain = workflow(
        "handler: make, next: count}\n  count: {handler: count, params: {lines: '{{ nodes.work.output }}'}"
    )

    async with Kit(handlers={"make": make, "count": count}, workflows=[chain]) as kit:
        job = await kit.run("tried")

    job.expect("completed", nodes={"count": "completed"})
    assert job.output("count") == 50_000
    assert job.result == {"answer": {"output_ref": job.nodes["work"].output_ref}}
    assert job.output("work") == ["a line"] * 50_000
    assert job.nodes["work"].output is None
    assert job.attempts("count")[0].params_ref is not None
