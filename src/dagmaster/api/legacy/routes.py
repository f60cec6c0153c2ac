"""The routes of the old API.

Requests about a job that this platform does not have are forwarded to the old system, if LEGACY_URL names one;
submissions are forwarded as LEGACY_SHARES says. `served_by` in each response names the system that it comes from.
"""

import json
from http import HTTPStatus
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from starlette.responses import Response

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission
from dagmaster.api.jobs import consistent_snapshot, view_of_snapshot
from dagmaster.api.legacy import shapes
from dagmaster.api.legacy.forward import FORWARDED, OldResponse, OldSystem
from dagmaster.api.legacy.submission import (
    OldSubmission,
    asset_request,
    job_request,
    makes_asset,
    read_submission,
)
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.client.limits import MAX_ITEMS
from dagmaster.client.models.jobs import JobPart, SubmissionResult
from dagmaster.client.models.legacy import OldJobStatus, OldStageRetry, OldSubmissionResponse, OldTaskList
from dagmaster.database.ledger.protocol import no_such_job
from dagmaster.database.reads.jobs import Snapshot
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.jobs.model import Job
from dagmaster.jobs.states import JobStatus
from dagmaster.jobs.view import JobView
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.assets.repeated import failed_before
from dagmaster.operations.assets.request import check
from dagmaster.operations.assets.submit import submit_checked
from dagmaster.operations.rerun import retry
from dagmaster.operations.submit import earlier_result, submit_once
from dagmaster.storage import Zone
from dagmaster.web.authentication import needs, require
from dagmaster.workflows.model import FanOutNode, Workflow

router = APIRouter(tags=["old API"])

# The ids of jobs and the job types become parts of a URL of the old system, so they cannot be `.` or `..`.
OldJobId = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$",
        description="The id of a job of this platform or of the old system",
        examples=["0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01"],
    ),
]
JobTypeName = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        description="The id of a workflow, or an old name of one",
        examples=["process_large_raster"],
    ),
]
StageNumber = Annotated[int, Path(ge=1, le=10_000, description="The number of the stage, from 1")]


async def _old_system(
    services: Services, forwarded: Annotated[str | None, Header(alias=FORWARDED, include_in_schema=False)] = None
) -> OldSystem | None:
    """The old system, unless the request was forwarded by another platform already."""
    return None if forwarded is not None else services.old_system


OldSystemIfAny = Annotated[OldSystem | None, Depends(_old_system)]
JobSubmitter = Annotated[Caller, Depends(needs(Permission.JOBS_SUBMIT))]
JobReader = Annotated[Caller, Depends(needs(Permission.JOBS_READ))]
Operator = Annotated[Caller, Depends(needs(Permission.JOBS_OPERATE))]
_FORWARDED_PROBLEMS = (502, 504)
_BODY = {"type": "object", "title": "Parameters", "description": "The parameters of the job", "examples": [{}]}


@router.post(
    "/api/jobs/submit/{job_type}",
    operation_id="old_submit_job",
    summary="Submit a job (old API)",
    response_model=OldSubmissionResponse,
    responses=responses(404, 409, *_FORWARDED_PROBLEMS),
    openapi_extra={"requestBody": {"content": {"application/json": {"schema": _BODY}}}},
)
async def submit_job(
    *,
    services: Services,
    caller: JobSubmitter,
    job_type: JobTypeName,
    request: Request,
    resume: Annotated[bool, Query(description="Resume the job of an earlier identical submission")] = False,
    force_reprocess: Annotated[bool, Query(description="Start a new job, even if there is one already")] = False,
    old_system: OldSystemIfAny,
) -> Response:
    """The body contains the parameters of the job; `resume` and `force_reprocess` may be among them. A raster becomes a
    submission of the platform `legacy`, which needs the permission assets:submit and is reviewed like any other
    submission. A request that is forwarded to the old system needs this permission too."""
    submission = read_submission(job_type, await _body_of(request), resume=resume, force=force_reprocess)
    if old_system is not None and not services.settings.legacy_read_only and services.shares.is_forwarded(submission):
        require(caller, Permission.ASSETS_SUBMIT)
        return _passed_on(
            await old_system.change(f"/api/jobs/submit/{job_type}", _body_for_old_system(submission), by=caller.name)
        )
    workflow = _workflow_of(services.library, submission)
    result = await _submit(services, caller, submission, workflow)
    return await _submitted(services, result, job_type)


def _workflow_of(library: WorkflowLibrary, submission: OldSubmission) -> Workflow:
    """An old name may stand for a workflow that is not installed, such as a flood workflow."""
    try:
        return library.get(submission.workflow_id)
    except NotFound:
        if submission.job_type == submission.workflow_id:
            raise
        raise NotFound(
            f"the job type '{submission.job_type}' stands for the workflow '{submission.workflow_id}', which is not "
            "installed on this platform",
            code="workflow.not-found",
            hint="add the workflow to a folder of WORKFLOW_FOLDERS, or let the old system run it: "
            f"LEGACY_URL=… LEGACY_SHARES={submission.job_type}=100",
            workflow_id=submission.workflow_id,
        ) from None


async def _body_of(request: Request) -> dict[str, Any]:
    """The parameters. The old system ignored the content type, so old clients may not send one."""
    text = await request.body()
    try:
        body = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise InvalidRequest(
            "the body is not a JSON object", code="request.invalid", hint="send the parameters of the job as an object"
        )
    return body


def _body_for_old_system(submission: OldSubmission) -> dict[str, Any]:
    """The body for the old system."""
    options = {"resume": submission.resume, "force_reprocess": submission.force}
    return {**submission.parameters, **{name: True for name, is_set in options.items() if is_set}}


async def _submit(
    services: ApiServices, caller: Caller, submission: OldSubmission, workflow: Workflow
) -> SubmissionResult:
    if makes_asset(workflow):
        require(caller, Permission.ASSETS_SUBMIT)
        return await _submit_raster(services, caller, submission, workflow)
    request = job_request(submission, workflow, submitted_by=caller.name)
    async with services.ledgers.acquire() as ledger:
        return await submit_once(ledger, services.library, request, force=submission.force, resume=submission.resume)


async def _submit_raster(
    services: ApiServices, caller: Caller, submission: OldSubmission, workflow: Workflow
) -> SubmissionResult:
    """A submission of the platform `legacy`. One that failed before is not repeated, unless the request forces it."""
    request = asset_request(submission, workflow, default_container=services.storage.containers[Zone.BRONZE])
    checked = await check(services.assets, services.library, services.storage, request, caller)
    job_id = None if submission.force else await failed_before(services.assets, checked)
    if job_id is None:
        result = await submit_checked(services.assets, services.library, checked)
        assert result.job_id is not None
        job_id = result.job_id
        if result.outcome not in ("already_processing", "already_completed"):
            return SubmissionResult(status="accepted", job_id=job_id, job_status=JobStatus.PENDING)
    async with services.ledgers.acquire() as ledger:
        response = await earlier_result(ledger, job_id, resume=submission.resume, by=caller.name)
    # Retention has deleted the job, but not its results.
    return response or SubmissionResult(status="already_completed", job_id=job_id, job_status=JobStatus.COMPLETED)


async def _submitted(services: ApiServices, result: SubmissionResult, job_type: str) -> Response:
    created_at, stages = None, []
    try:
        job, view, _ = await _job_and_view(services, result.job_id)
        created_at, stages = job.created_at, shapes.old_stages(view)
    except NotFound:
        pass  # the job was deleted
    shape = shapes.submission_shape(
        result, stages, job_type=job_type, queue=services.settings.job_queue_name, created_at=created_at
    )
    return _json(shape)


@router.get(
    "/api/jobs/status/{job_id}",
    operation_id="old_get_job_status",
    summary="Get the status of a job (old API)",
    response_model=OldJobStatus,
    responses=responses(404, *_FORWARDED_PROBLEMS),
)
async def get_job_status(
    services: Services, _caller: JobReader, job_id: OldJobId, old_system: OldSystemIfAny
) -> Response:
    """If the job is not on this platform, the request is forwarded to the old system."""
    try:
        job, view, snapshot = await _job_and_view(services, _uuid(job_id))
    except NotFound as error:
        return await _read_from_old_system(old_system, error, f"/api/jobs/status/{job_id}")
    shape = shapes.status_shape(
        job,
        view,
        await _facts(services, job, view, snapshot),
        job_type=job.workflow_id,
        seconds=snapshot.seconds,
        updated_at=job.updated_at,
    )
    return _json(shape)


@router.post(
    "/api/jobs/retry-stage/{job_id}/{stage}",
    operation_id="old_retry_stage",
    summary="Run a stage of a job again (old API)",
    response_model=OldStageRetry,
    responses=responses(404, 409, *_FORWARDED_PROBLEMS),
)
async def retry_stage(
    services: Services, caller: Operator, job_id: OldJobId, stage: StageNumber, old_system: OldSystemIfAny
) -> Response:
    """Only for jobs that failed, were cancelled or succeeded in part, and for stages that were reached. Everything that
    depends on the stage runs again too."""
    try:
        own_id = _uuid(job_id)
        async with services.ledgers.acquire() as ledger:
            job = await ledger.load_job(own_id)
            if job is None:
                raise no_such_job(own_id)
            chosen = shapes.retried_stage(own_id, job.status, shapes.old_stages(job.view()), stage)
            part = JobPart(stage=str(chosen.label_number))
            await retry(ledger, own_id, part, by=caller.name, reason="a stage was retried with the old API")
    except NotFound as error:
        if old_system is None or error.code != "job.not-found":
            raise
        require(caller, Permission.ASSETS_SUBMIT)
        return _passed_on(await old_system.change(f"/api/jobs/retry-stage/{job_id}/{stage}", {}, by=caller.name))
    return _json(shapes.retry_shape(own_id, stage))


@router.get(
    "/api/dbadmin/tasks/{job_id}",
    operation_id="old_list_tasks",
    summary="List the tasks of a job (old API)",
    response_model=OldTaskList,
    responses=responses(404, *_FORWARDED_PROBLEMS),
)
async def list_tasks(
    *,
    services: Services,
    _caller: JobReader,
    job_id: OldJobId,
    stage: Annotated[int | None, Query(ge=1, le=10_000, description="Only tasks of this stage")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_ITEMS, description="Maximum number of tasks")] = MAX_ITEMS,
    offset: Annotated[int, Query(ge=0, le=10_000_000, description="Tasks to skip")] = 0,
    old_system: OldSystemIfAny,
) -> Response:
    try:
        own_id = _uuid(job_id)
        job = await services.reads.job(own_id)
        graph = await services.reads.graph(job.definition_hash)
    except NotFound as error:
        query = {"limit": limit, "offset": offset} | ({} if stage is None else {"stage": stage})
        return await _read_from_old_system(old_system, error, f"/api/dbadmin/tasks/{job_id}", query)
    numbers = shapes.stage_numbers(graph)
    nodes = [name for name in graph.order if name in graph.work and stage in (None, numbers.get(name))]
    tasks = await services.reads.old_tasks(own_id, nodes, limit=limit + 1, offset=offset)
    following = offset + limit if len(tasks) > limit else None
    shape = shapes.tasks_shape(own_id, job.workflow_id, graph, tasks[:limit], stage=stage, next_offset=following)
    return _json(shape)


async def _job_and_view(services: ApiServices, job_id: UUID) -> tuple[Job, JobView, Snapshot]:
    job = await services.reads.job(job_id)
    graph = await services.reads.graph(job.definition_hash)
    job, snapshot = await consistent_snapshot(services, job, graph.order)
    return job, view_of_snapshot(job, graph, snapshot), snapshot


async def _facts(services: ApiServices, job: Job, view: JobView, snapshot: Snapshot) -> shapes.StageFacts:
    """Outputs are read only if the job has ended, because they are not shown before."""
    nodes = view.graph.workflow.nodes
    fan_outs = [name for name, node in nodes.items() if isinstance(node, FanOutNode) and not view.nodes[name].remaining]
    children = await services.reads.children_facts(job.job_id, fan_outs, with_outputs=snapshot.is_over)
    outputs = {}
    if snapshot.is_over:
        names = [*shapes.SUMMARY_FIELDS, "size_mb"]
        outputs = await services.reads.output_fields(job.job_id, list(view.graph.work), names)
    started = {node.node_id: node.dispatched_at or node.started_at or node.completed_at for node in snapshot.nodes}
    return shapes.StageFacts(
        started_at={name: at for name, at in started.items() if at},
        completed_at={node.node_id: node.completed_at for node in snapshot.nodes if node.completed_at},
        outputs=outputs,
        children={each.node_id: each for each in children},
    )


async def _read_from_old_system(
    old_system: OldSystem | None, error: NotFound, path: str, query: dict[str, Any] | None = None
) -> Response:
    if old_system is None or error.code != "job.not-found":
        raise error
    return _passed_on(await old_system.read(path, query))


def _passed_on(response: OldResponse) -> Response:
    content = {**response.content, "served_by": shapes.OLD_SYSTEM, "servedBy": shapes.OLD_SYSTEM}
    return _json(content, status=HTTPStatus(response.status))


def _json(content: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Response:
    """ASCII only: a text of the old system may have lone surrogates, which cannot be encoded otherwise."""
    body = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return Response(body, status_code=status, media_type="application/json")


def _uuid(job_id: str) -> UUID:
    """The id of a job of this platform. Ids of the old system have another form."""
    try:
        return UUID(job_id)
    except ValueError:
        raise NotFound(f"no job has the id {job_id}", code="job.not-found", job_id=job_id) from None
