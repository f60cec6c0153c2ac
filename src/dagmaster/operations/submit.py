"""Submit a job: check what is asked against the workflow, then create job, nodes and first event in one transaction."""

import time
from collections.abc import Callable, Sequence
from uuid import UUID

import orjson
from pydantic import ValidationError

from dagmaster.database.ledger import Ledger, NewJob
from dagmaster.errors import DagmasterError, InvalidRequest
from dagmaster.jobs.model import DeadLetter, JobMessage, Submission, new_job_id
from dagmaster.operations.catalog import Catalog
from dagmaster.workflows.inputs import check_inputs


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000


def prepare(
    catalog: Catalog,
    submission: Submission,
    *,
    milliseconds: Callable[[], int] = _milliseconds,
) -> NewJob:
    """The job that a submission asks for, or an error that names what is wrong with it."""
    workflow = catalog.get(submission.workflow_id)
    inputs = check_inputs(workflow, submission.input_params)
    size = _size_bytes(inputs)
    limit = catalog.max_params_bytes
    if size > limit:
        raise InvalidRequest(f"the inputs have {size} bytes; the limit is {limit}", code="inputs.too-large")
    return NewJob(
        job_id=new_job_id(milliseconds()),
        workflow=workflow,
        input_params=inputs,
        priority=submission.priority,
        correlation_id=submission.correlation_id,
        submitted_by=submission.submitted_by,
        callback_url=submission.callback_url,
        idempotency_key=submission.idempotency_key,
        message_id=submission.message_id,
    )


def _size_bytes(inputs: object) -> int:
    try:
        text = orjson.dumps(inputs)
    except TypeError as error:
        raise InvalidRequest(f"the inputs are not JSON: {error}", code="inputs.not-json") from error
    if b"\\u0000" in text:
        raise InvalidRequest("the inputs contain a NUL character, which can't be stored", code="inputs.nul")
    return len(text)


async def submit(ledger: Ledger, catalog: Catalog, submissions: Sequence[Submission]) -> list[UUID]:
    """Create jobs for these submissions: all or none."""
    jobs = [prepare(catalog, submission) for submission in submissions]
    return await ledger.create_jobs(jobs)


async def take_submissions(ledger: Ledger, catalog: Catalog, queue: str, limit: int = 100) -> int:
    """Turn messages waiting in a queue into jobs; those that can't become one go to the dead letters with the reason [Q1, E2]."""
    return len(await ledger.take_messages(queue, limit, lambda message: _job_or_letter(catalog, message)))


def _job_or_letter(catalog: Catalog, message: JobMessage) -> NewJob | DeadLetter:
    try:
        body = message.body if isinstance(message.body, dict) else {}
        submission = Submission.model_validate({**body, "message_id": message.message_id})
        return prepare(catalog, submission)
    except ValidationError as error:
        return _letter(
            message, "Malformed", "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        )
    except DagmasterError as error:
        reason = "WorkflowNotFound" if error.code == "workflow.not-found" else "InvalidSubmission"
        return _letter(message, reason, str(error))


def _letter(message: JobMessage, reason: str, description: str) -> DeadLetter:
    return DeadLetter.model_construct(
        dead_letter_id=new_job_id(0), queue=message.queue, message_id=message.message_id, reason=reason,
        description=description, body=message.body, created_at=message.enqueued_at,
    )  # fmt: skip
