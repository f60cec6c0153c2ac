"""Idempotent submission: one key names one job, and a repeated submission returns its state."""

import asyncio

import pytest

from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.notify.notifier import JOBS
from dagmaster.errors import Conflict, InvalidRequest
from dagmaster.jobs.model import Submission
from dagmaster.operations.submit import prepare, submit_once
from tests.engine.harness import engine, workflow

pytestmark = pytest.mark.requirement("E16")

ONCE = """
    workflow_id: once
    idempotent: true
    inputs: {n: {type: integer, required: true}, fail: {type: boolean, default: false}}
    nodes:
      start: {type: start, next: route}
      route: {type: conditional, condition: "{{ inputs.fail }}", on_true: bad, on_false: good}
      good: {handler: echo, stage: work, params: {n: "{{ inputs.n }}"}, next: end}
      bad: {handler: fail, stage: trouble, params: {message: no, blame: data}, next: end}
      end: {type: end, depends_on: {any_of: [good, bad]}}
"""


def submission(key=None, by=None, **inputs):
    return Submission(workflow_id="once", input_params=inputs, idempotency_key=key, submitted_by=by)


async def test_a_repeated_submission_returns_the_existing_job_and_its_state(database):
    async with engine(database, orchestrators=0, workers=0) as running:
        running.add(workflow(ONCE))
        first = await submit_once(running.ledger, running.library, submission(n=1))
        waiting = await submit_once(running.ledger, running.library, submission(n=1))
        await running.start_orchestrator()
        await running.start_worker()
        await running.wait(first.job_id)

        done = await submit_once(running.ledger, running.library, submission(n=1))

        assert (first.status, waiting.status, done.status) == ("accepted", "already_processing", "already_completed")
        assert first.job_id == waiting.job_id == done.job_id
        assert done.result_data == {"good": {"echoed_params": {"n": 1}}}


async def test_a_repeated_submission_names_the_failed_stage_and_force_starts_a_new_job(database):
    async with engine(database) as running:
        running.add(workflow(ONCE))
        first = await submit_once(running.ledger, running.library, submission(n=1, fail=True))
        await running.wait(first.job_id)

        again = await submit_once(running.ledger, running.library, submission(n=1, fail=True))
        forced = await submit_once(running.ledger, running.library, submission(n=1, fail=True), force=True)
        after = await submit_once(running.ledger, running.library, submission(n=1, fail=True))

        assert (again.status, again.job_status, again.failed_stage) == ("previously_failed", "failed", "trouble")
        assert "start" in again.completed_stages
        assert forced.status == "accepted"
        assert forced.job_id != first.job_id
        assert after.job_id == forced.job_id
        await running.wait(forced.job_id)


async def test_only_one_of_several_concurrent_submissions_creates_the_job(database):
    async with engine(database, orchestrators=0, workers=0) as running:
        running.add(workflow(ONCE))
        ledgers = [PostgresLedger(database, f"racer-{n}") for n in range(8)]

        responses = await asyncio.gather(*(submit_once(each, running.library, submission(n=7)) for each in ledgers))

        assert len({response.job_id for response in responses}) == 1
        assert sorted(response.status for response in responses) == ["accepted"] + ["already_processing"] * 7
        assert len(await running.rows("SELECT 1 FROM dagapp.dag_jobs")) == 1
        for ledger in ledgers:
            await ledger.close()


async def test_the_same_key_with_other_inputs_is_a_conflict(database):
    async with engine(database, orchestrators=0, workers=0) as running:
        running.add(workflow(ONCE))
        await submit_once(running.ledger, running.library, submission("k", n=1))

        with pytest.raises(Conflict) as refused:
            await submit_once(running.ledger, running.library, submission("k", n=2), force=True)

        assert refused.value.code == "job.key-conflict"
        assert len(await running.rows("SELECT 1 FROM dagapp.dag_jobs")) == 1


async def test_keys_belong_to_their_submitter(database):
    async with engine(database, orchestrators=0, workers=0) as running:
        running.add(workflow(ONCE))

        mine = await submit_once(running.ledger, running.library, submission("k", by="me", n=1))
        yours = await submit_once(running.ledger, running.library, submission("k", by="you", n=2))

        assert (mine.status, yours.status) == ("accepted", "accepted")


RESERVED = """
    workflow_id: reserved
    inputs: {n: {type: integer}, place: {type: string, reserved: true}}
    nodes:
      start: {type: start, next: end}
      end: {type: end}
"""


@pytest.mark.requirement("W1")
async def test_only_the_platform_itself_can_set_reserved_inputs(database):
    submission = Submission(workflow_id="reserved", inputs={"n": 1, "place": "roads"})
    async with engine(database, orchestrators=0, workers=0) as running:
        running.add(workflow(RESERVED))
        with pytest.raises(InvalidRequest) as refused:
            await submit_once(running.ledger, running.library, submission)
        own = prepare(running.library, submission, allow_reserved=True)

        assert (refused.value.code, refused.value.facts["fields"]) == ("inputs.reserved", ["place"])
        assert own.input_params == {"n": 1, "place": "roads"}
        assert await running.rows("SELECT 1 FROM dagapp.dag_jobs") == []


@pytest.mark.requirement("W1", "Q1")
async def test_a_message_that_sets_a_reserved_input_becomes_a_dead_letter(database):
    async with engine(database, workers=0) as running:
        running.add(workflow(RESERVED))
        await running.ledger.enqueue_message("m1", "dag-jobs", {"workflow_id": "reserved", "inputs": {"place": "x"}})
        running.notifier.notify(JOBS)
        while not (letters := await running.rows("SELECT * FROM dagapp.dag_dead_letters")):
            pass

        assert [letter["reason"] for letter in letters] == ["InvalidSubmission"]
        assert "are set by the platform: 'place'" in letters[0]["description"]
        assert await running.rows("SELECT 1 FROM dagapp.dag_jobs") == []
