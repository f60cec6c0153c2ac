"""Submit a job: check the inputs against the workflow, then create job, nodes and first events in one transaction.

With an idempotency key (of the request, or by default for workflows with `idempotent: true`) a repeated submission
returns the job of the first one.
"""

import hashlib
import time
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson
from pydantic import ValidationError

from dagmaster.callbacks.url import check_callback_url
from dagmaster.client.models.jobs import SubmissionResult
from dagmaster.database.ledger.protocol import (
    LoadedJob,
    MessageScope,
    NewJob,
    OrchestratorLedger,
    SubmissionLedger,
    dead_letter,
)
from dagmaster.errors import Conflict, DagmasterError, InvalidRequest
from dagmaster.jobs.model import DeadLetter, JobMessage, Submission, new_job_id
from dagmaster.jobs.stages import stages_of
from dagmaster.jobs.states import JobStatus
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.observe import traces
from dagmaster.observe.redaction import redact_value
from dagmaster.operations.callback_urls import callback_urls, main_callback_url
from dagmaster.operations.rerun import resume as resume_job
from dagmaster.workflows.inputs import check_inputs, has_signed_url, refuse_reserved, refuse_signed_urls
from dagmaster.workflows.storable import encode

_MAX_MESSAGES = 100  # that one transaction turns into jobs


def prepare(library: WorkflowLibrary, submission: Submission, *, allow_reserved: bool = False) -> NewJob:
    """The job that a submission requests, or an error that names what is wrong with it.

    `allow_reserved` is for the platform's own submissions, which set the reserved inputs of a workflow.
    """
    with traces.span("submit job", kind="producer", workflow=submission.workflow_id) as span:
        job = _prepare(library, submission, allow_reserved=allow_reserved)
        span.set(job_id=str(job.job_id))
        return replace(job, traceparent=span.traceparent) if span.traceparent else job


def _prepare(library: WorkflowLibrary, submission: Submission, *, allow_reserved: bool) -> NewJob:
    workflow = library.get(submission.workflow_id)
    if not allow_reserved:
        refuse_reserved(workflow, submission.inputs)
    refuse_signed_urls(workflow, submission.inputs)
    inputs = check_inputs(workflow, submission.inputs)
    size = len(encode(inputs, "the inputs"))
    limit = library.max_inputs_bytes
    if size > limit:
        raise InvalidRequest(f"the inputs have {size} bytes; the limit is {limit}", code="inputs.too-large")
    for field, url in callback_urls(submission).items():
        check_callback_url(url, allow_private=library.allow_private_callbacks, field=field)
    return NewJob(
        job_id=new_job_id(time.time_ns() // 1_000_000),
        workflow=workflow,
        input_params=inputs,
        priority=submission.priority,
        correlation_id=submission.correlation_id,
        submitted_by=submission.submitted_by,
        callback_url=main_callback_url(submission.callback_url, submission.subscriber),
        subscriber=None if submission.subscriber is None else submission.subscriber.urls,
        idempotency_key=submission.idempotency_key,
        message_id=submission.message_id,
    )


async def submit_once(
    ledger: SubmissionLedger,
    library: WorkflowLibrary,
    submission: Submission,
    *,
    force: bool = False,
    resume: bool = False,
) -> SubmissionResult:
    """Create the job, or return the state of the job that the same submission created before. With `resume` that job is
    resumed if it has ended without completing. Without a key, or with `force`, each call creates a job."""
    job = _with_key(prepare(library, submission))
    if job.idempotency_key is None:
        await ledger.create_jobs([job])
        return SubmissionResult(status="accepted", job_id=job.job_id, job_status=JobStatus.PENDING)
    try:
        job_id = await ledger.create_once(job, job.request_hash, force=force)
    except Conflict as error:
        raise await _name_other_workflow(error, ledger, job) from None
    if job_id == job.job_id:
        return SubmissionResult(status="accepted", job_id=job_id, job_status=JobStatus.PENDING)
    result = await earlier_result(ledger, job_id, resume=resume, by=submission.submitted_by)
    if result is None:  # retention has deleted the job and its key meanwhile
        return await submit_once(ledger, library, submission, force=force, resume=resume)
    return result


async def earlier_result(
    ledger: SubmissionLedger, job_id: UUID, *, resume: bool, by: str | None
) -> SubmissionResult | None:
    """The state of the job that the same submission created before; None if it was deleted. With `resume` it is resumed
    if it has ended without completing."""
    earlier = await ledger.load_job(job_id)
    if earlier is None:
        return None
    result = _result_of(earlier)
    return await _resumed(ledger, result, by) if resume and result.status == "previously_failed" else result


async def _name_other_workflow(error: Conflict, ledger: SubmissionLedger, job: NewJob) -> Conflict:
    """The conflict; if the key belongs to a job of another workflow, it names that workflow."""
    earlier = await ledger.load_job(error.facts["job_id"])
    other = (earlier or job).workflow.workflow_id
    if other == job.workflow.workflow_id:
        return error
    return Conflict(
        f"the idempotency key '{job.idempotency_key}' was already used for a submission of the workflow '{other}'",
        code="job.key-conflict",
        hint="use another key for this workflow",
        **error.facts,
    )


async def _resumed(ledger: SubmissionLedger, result: SubmissionResult, by: str | None) -> SubmissionResult:
    try:
        resumed = await resume_job(ledger, result.job_id, by=by, reason="an identical submission was sent")
    except Conflict:  # another submission has just resumed it, or nothing in it can run again
        job = await ledger.load_job(result.job_id)
        return result if job is None else _result_of(job)
    fields = {"status": "resumed", "job_status": JobStatus.RUNNING, "resume_count": resumed.resume_count, "hint": None}
    return result.model_copy(update=fields)


def _with_key(job: NewJob) -> NewJob:
    """The job with the hash that identifies a repeated submission. If the job has no key, and its workflow has
    `idempotent: true`, the hash is also its key."""
    request = request_hash(job)
    uses_hash = job.idempotency_key is None and job.workflow.idempotent
    return replace(job, request_hash=request, idempotency_key=request if uses_hash else job.idempotency_key)


def request_hash(job: NewJob) -> str:
    """SHA-256 of the workflow id and the canonical inputs."""
    canonical = orjson.dumps([job.workflow.workflow_id, job.input_params], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()


def _result_of(job: LoadedJob) -> SubmissionResult:
    stages = stages_of(job.view())
    result = SubmissionResult(
        status="already_processing",
        job_id=job.job_id,
        job_status=job.status,
        completed_stages=tuple(stage.label for stage in stages if stage.is_complete),
        resume_count=job.resume_count,
    )
    match job.status:
        case JobStatus.PENDING | JobStatus.RUNNING:
            return result
        case JobStatus.COMPLETED:
            return result.model_copy(update={"status": "already_completed", "result_data": job.result_data})
    fields = _failure_fields(job, next((stage.label for stage in stages if stage.has_failed), None))
    return result.model_copy(update=fields)


def _failure_fields(job: LoadedJob, failed_stage: str | None) -> dict[str, Any]:
    return {
        "status": "previously_failed",
        "result_data": job.result_data,
        "error_message": job.error_message,
        "failed_stage": failed_stage,
        "hint": "submit again with resume=true to continue this job, or with force=true for a new one",
    }


async def take_submissions(
    ledger: OrchestratorLedger, library: WorkflowLibrary, queue: str, *, unknown_after_seconds: float
) -> int:
    """Turn messages waiting in a queue into jobs; those that are invalid become dead letters with the reason. Messages
    of unknown workflows wait for `unknown_after_seconds`: another orchestrator may know the workflow."""
    scope = MessageScope(library.workflows.keys(), unknown_after_seconds)
    processed = await ledger.take_messages(
        queue, _MAX_MESSAGES, lambda message: _job_or_letter(library, message), scope=scope
    )
    return len(processed)


def _job_or_letter(library: WorkflowLibrary, message: JobMessage) -> NewJob | DeadLetter:
    try:
        body = message.body if isinstance(message.body, dict) else {}
        submission = Submission.model_validate({**body, "message_id": message.message_id})
        return _with_key(prepare(library, submission))
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        return _dead_letter(message, "Malformed", "; ".join(problems))
    except DagmasterError as error:
        reason = "WorkflowNotFound" if error.code == "workflow.not-found" else "InvalidSubmission"
        return _dead_letter(message, reason, str(error))


def _dead_letter(message: JobMessage, reason: str, description: str) -> DeadLetter:
    """Dead letters are stored, so signatures and passwords are removed from URLs in them."""
    body = redact_value(message.body) if has_signed_url(message.body) else message.body
    return dead_letter(message.model_copy(update={"body": body}), reason, description)
