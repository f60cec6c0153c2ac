"""The Python client of a platform: submit jobs, watch them, read their results; submit data and review it.

    Client       for scripts and notebooks        client.result(client.submit("hello_world").job_id)
    AsyncClient  the same methods as coroutines   await client.result(…)

Both return the models of `dagmaster.client.models`, and raise the errors of `dagmaster.errors`. `json` has every
request of the API, with responses as JSON.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from io import BytesIO
from types import TracebackType
from typing import Any, BinaryIO, NoReturn, Self, TypeAlias
from urllib.parse import urljoin
from uuid import UUID

import orjson

from dagmaster.cancellation import cancel_and_wait
from dagmaster.client.assets import Assets, AsyncAssets
from dagmaster.client.blocking import EventLoopThread, blocking, iterating
from dagmaster.client.connection import TIMEOUT_SECONDS, ApiConnection, NamedEvent
from dagmaster.client.credentials import key_for
from dagmaster.client.discovery import find_api, find_maps
from dagmaster.client.json_client import (
    MAX_OUTAGE_SECONDS,
    PAUSE_SECONDS,
    AsyncJsonClient,
    Connected,
    JsonClient,
    Outage,
)
from dagmaster.client.keys import AsyncKeys, Keys
from dagmaster.client.layers import AsyncLayers, Layers
from dagmaster.client.limits import MAX_ITEMS
from dagmaster.client.models.base import Json, parse, unexpected
from dagmaster.client.models.bulk import BulkReport, BulkRequest
from dagmaster.client.models.changes import ChangeBatch, ChangeKind
from dagmaster.client.models.datasets import DatasetSummary
from dagmaster.client.models.jobs import (
    CancelProgress,
    EventEntry,
    JobCounts,
    JobDetail,
    JobSummary,
    Resumed,
    SubmissionResult,
)
from dagmaster.client.models.nodes import JobLogLine, NodeDetail, PublicNode
from dagmaster.client.models.operations import (
    DatabaseHealth,
    OrchestratorSummary,
    QueueSummary,
    TaskLease,
    WorkerSummary,
)
from dagmaster.client.models.workflows import (
    DefinitionText,
    JobGraph,
    StoredDefinition,
    WorkflowDetail,
    WorkflowHistory,
    WorkflowSummary,
)
from dagmaster.client.uploads import AsyncUploads, Uploads
from dagmaster.dataset_urls import DatasetUrls
from dagmaster.errors import InvalidRequest, JobFailed, NotFound, Unavailable, WaitTimedOut
from dagmaster.settings import load

JobId: TypeAlias = UUID | str

ATTEMPTS = 3
_POLL_SECONDS = 2.0  # if the stream of events signals no change: it may be interrupted
_MIN_PAUSE_SECONDS = 0.1  # between two requests for a job that changes all the time


class AsyncClient(AsyncAssets, AsyncLayers, AsyncKeys, AsyncUploads):
    """A client of the platform at `server`, or of the one that commands use (DAGMASTER_URL, or `dagmaster up`).

    `key` is an API key or an OIDC token; by default DAGMASTER_KEY, or the key that `dagmaster login` has stored for
    this platform. `maps` is the URL of the map server (PUBLIC_URL), for datasets. A request that is safe to repeat,
    such as a GET or a submission with an idempotency key, is sent up to `attempts` times while the platform is
    unavailable. `headers` are sent with each request. Tasks of one event loop may share a client.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        key: str | None = None,
        maps: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        attempts: int = ATTEMPTS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if attempts < 1 or timeout_seconds <= 0:
            raise InvalidRequest("`attempts` and `timeout_seconds` must be positive", code="client.invalid")
        connect: Callable[[Callable[[], str]], ApiConnection] = lambda find: ApiConnection(  # noqa: E731
            find,
            timeout_seconds,
            attempts=attempts,
            headers=headers,
            find_key=lambda: key_for(load(), server=server, chosen=key),
        )
        self.json = AsyncJsonClient(connect(lambda: server or find_api(load())))
        self._maps = connect(lambda: find_maps(load(), maps))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        await self.json.close()
        await self._maps.close()

    # Jobs

    async def submit(
        self,
        workflow_id: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        priority: int = 0,
        idempotency_key: str | None = None,
        correlation_id: str | None = None,
        callback_url: str | None = None,
        subscriber: Mapping[str, str] | None = None,
        definition: str | None = None,
        force: bool = False,
        resume: bool = False,
    ) -> SubmissionResult:
        """Create a job of a workflow, or of the YAML text in `definition`. Inputs are checked before the job exists.

        The same idempotency key returns the same job, and an identical submission of an idempotent workflow returns its
        earlier job, unless `force` starts a new one; `resume` continues an earlier job that failed.
        """
        submission = {
            "workflow_id": workflow_id,
            "input_params": dict(inputs or {}),  # the old name of `inputs`, which older platforms understand too
            "priority": priority,
            "idempotency_key": idempotency_key,
            "correlation_id": correlation_id,
            "callback_url": callback_url,
            "subscriber": dict(subscriber) if subscriber else None,
            "definition": definition,
        }
        sent = {name: value for name, value in submission.items() if value is not None}
        return parse(SubmissionResult, await self.json.submit(sent, force=force, resume=resume))

    async def job(self, job_id: JobId) -> JobDetail:
        """A job with its nodes, its result and its errors."""
        return parse(JobDetail, await self.json.job(_id(job_id)))

    async def find_job(self, name: str) -> UUID:
        """The id of a job by the unique beginning of its id, or `last` for the newest job."""
        return UUID(await self.json.find_job(name))

    async def jobs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow_id: str | Sequence[str] | None = None,
        submitted_by: str | Sequence[str] | None = None,
        correlation_id: str | None = None,
        search: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[JobSummary]:
        """Jobs, newest first. More pages are requested as they are needed. `search` are words that all occur in the
        job's id, workflow, submitter, correlation id, idempotency key, asset id, inputs or error; the beginning of a
        word is enough."""
        filters: dict[str, Any] = {
            "q": search,
            "workflow_id": workflow_id,
            "submitted_by": submitted_by,
            "correlation_id": correlation_id,
            "created_after": _time(created_after),
            "created_before": _time(created_before),
        }
        async for job in self._all(JobSummary, "/jobs", limit, status=status, **filters):
            yield job

    async def job_counts(self, /, **filters: str | Sequence[str] | None) -> JobCounts:
        """How many jobs there are in each status, with the filters of the API: `workflow_id`, `q`, `since` and so on.
        Large numbers are not exact."""
        return parse(JobCounts, await self.json.job_counts(**filters))

    async def watch(self, job_id: JobId, *, timeout_seconds: float | None = None) -> AsyncIterator[JobDetail]:
        """The job now, and each time it has changed, until it has ended. Handlers' progress is in its nodes.

        Outages of the platform of up to a minute are tolerated: the job continues afterwards. After `timeout_seconds`
        WaitTimedOut is raised; the job is not affected.
        """
        deadline = _now() + timeout_seconds if timeout_seconds is not None else None
        detail = await self._job_when_available(job_id, deadline)
        yield detail
        changed = asyncio.Event()
        listener = asyncio.create_task(self._listen(_id(job_id), detail.job.last_sequence, changed))
        try:
            while not detail.is_over:
                await _wait_for(changed, _POLL_SECONDS, deadline)
                before, detail = detail, await self._job_when_available(job_id, deadline)
                if detail.is_over or _visible(detail) != _visible(before):
                    yield detail
                elif deadline is not None and _now() >= deadline:
                    _time_out(job_id, detail)
        finally:
            await cancel_and_wait(listener)

    async def wait(
        self,
        job_id: JobId,
        *,
        timeout_seconds: float | None = None,
        on_change: Callable[[JobDetail], None] | None = None,
    ) -> JobDetail:
        """The job after its end, whatever its outcome. `on_change` is called with the job each time it has changed."""
        async with contextlib.aclosing(self.watch(job_id, timeout_seconds=timeout_seconds)) as details:  # type: ignore[type-var]
            async for detail in details:
                if on_change is not None:
                    on_change(detail)
        return detail

    async def result(self, job_id: JobId, *, timeout_seconds: float | None = None) -> Any:
        """The result of a job, after its end. Raises JobFailed if the job did not complete."""
        detail = await self.wait(job_id, timeout_seconds=timeout_seconds)
        if detail.status != "completed":
            raise _failure(detail)
        return detail.result

    async def cancel(self, job_id: JobId, *, reason: str | None = None, wait_seconds: float = 2.0) -> CancelProgress:
        """Request the cancellation of a job, and wait a moment for its end. A second request changes nothing."""
        return parse(CancelProgress, await self.json.cancel(_id(job_id), _intervention(reason), wait_seconds))

    async def resume(self, job_id: JobId, *, reason: str | None = None, dry_run: bool = False) -> Resumed:
        """Run the nodes that failed, were cancelled, or were skipped for that reason, with the inputs of the job."""
        return parse(Resumed, await self.json.resume(_id(job_id), _intervention(reason), is_dry_run=dry_run))

    async def retry(
        self,
        job_id: JobId,
        *,
        node: str | None = None,
        stage: str | None = None,
        failed_children: str | None = None,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> Resumed:
        """Run a part of a job again, and what depends on it: a node, a stage, or the failed children of a fan_out."""
        parts = {"node": node, "stage": stage, "failed_children": failed_children}
        request = {name: value for name, value in parts.items() if value is not None} | _intervention(reason)
        return parse(Resumed, await self.json.retry(_id(job_id), request, is_dry_run=dry_run))

    async def change_jobs(self, request: BulkRequest) -> BulkReport:
        """Cancel, resume or retry many jobs; with `preview`, only return what would happen. Each job gets a result."""
        return parse(BulkReport, await self.json.change_jobs(request.model_dump(mode="json", exclude_none=True)))

    async def export_job(self, job_id: JobId, file: BinaryIO) -> int:
        """Write a job with its whole history to a file, as JSON. Returns its size in bytes."""
        return await self.json.export_job(_id(job_id), file)

    async def nodes(
        self, job_id: JobId, *, parent: str | None = None, status: str | None = None, limit: int | None = None
    ) -> AsyncIterator[PublicNode]:
        """The nodes of a job; with `parent`, the children of a fan_out."""
        path = f"/jobs/{_id(job_id)}/nodes"
        async for node in self._all(PublicNode, path, limit, parent=parent, status=status):
            yield node

    async def node(self, job_id: JobId, node_id: str) -> NodeDetail:
        """A node with its attempts: params, output, error, worker and log lines."""
        return parse(NodeDetail, await self.json.node(_id(job_id), node_id))

    async def output(self, job_id: JobId, node_id: str) -> Any:
        """The whole output of a node, also if it is too large to be part of other responses."""
        file = BytesIO()
        await self.download_output(job_id, node_id, file)
        try:
            return orjson.loads(file.getvalue())
        except orjson.JSONDecodeError as error:
            raise unexpected(f"the output is not JSON ({error})") from None

    async def download_output(self, job_id: JobId, node_id: str, file: BinaryIO) -> int:
        """Write the whole output of a node to a file, as JSON. Returns its size in bytes."""
        return await self.json.download_output(_id(job_id), node_id, file)

    async def events(
        self, job_id: JobId, *, after: int = 0, node_id: str | None = None, limit: int | None = None
    ) -> AsyncIterator[EventEntry]:
        """The events of a job, in order."""
        path = f"/jobs/{_id(job_id)}/events"
        async for event in self._all(EventEntry, path, limit, after=str(after), node_id=node_id):
            yield event

    async def follow(self, job_id: JobId, *, after: int = 0) -> AsyncIterator[EventEntry]:
        """The events of a job as they happen, each once and in order, until the job has ended."""
        outage = _OutageLimit()
        async for update in self.json.follow(_id(job_id), after):
            match update:
                case Connected():
                    outage.end()
                case Outage(error):
                    outage.check(error)
                case event if event.sequence is not None:
                    yield parse(EventEntry, _decoded(event.data))

    async def logs(
        self, job_id: JobId, *, node_id: str | None = None, attempt: int | None = None, limit: int | None = None
    ) -> AsyncIterator[JobLogLine]:
        """The lines that the handlers of a job have logged."""
        path = f"/jobs/{_id(job_id)}/logs"
        async for line in self._all(JobLogLine, path, limit, node_id=node_id, attempt=attempt):
            yield line

    # The platform

    async def changes(
        self, kinds: Sequence[ChangeKind] | None = None, *, after: str | None = None
    ) -> AsyncIterator[ChangeBatch]:
        """The changes on the platform as they happen: jobs, assets, and hints that queues or instances have changed.

        By default all kinds that the key allows. `after` is the `cursor` of an earlier batch: changes since then come
        first. A change may be repeated, but none is missed; after a batch with `resync`, read again the data you need.
        """
        outage = _OutageLimit()
        async for update in self.json.changes(kinds, after):
            match update:
                case Connected():
                    outage.end()
                case Outage(error):
                    outage.check(error)
                case NamedEvent(name, cursor, data) if name != "hello":
                    yield _batch_of(name, cursor, _decoded(data))

    async def workflows(self) -> list[WorkflowSummary]:
        """The workflows of the platform."""
        return [parse(WorkflowSummary, workflow) for workflow in await self.json.workflows()]

    async def workflow(self, workflow_id: str) -> WorkflowDetail:
        """A workflow with its definition and a JSON schema of its inputs."""
        return parse(WorkflowDetail, await self.json.workflow(workflow_id))

    async def definitions(self, workflow_id: str) -> list[StoredDefinition]:
        """The definitions that jobs of a workflow had, newest first."""
        return [parse(StoredDefinition, each) for each in await self.json.definitions(workflow_id)]

    async def definition(self, workflow_id: str, definition_hash: str = "current") -> DefinitionText:
        """A definition of a workflow as text, which can be compared with others line by line."""
        return parse(DefinitionText, await self.json.definition(workflow_id, definition_hash))

    async def workflow_statistics(self, workflow_id: str, *, days: int = 30) -> WorkflowHistory:
        """Statistics of the jobs of a workflow in the last days: success rate, durations, the newest jobs."""
        return parse(WorkflowHistory, await self.json.workflow_statistics(workflow_id, days))

    async def job_graph(self, job_id: JobId) -> JobGraph:
        """The graph of a job with the state of its nodes; a fan_out is one node with counts."""
        return parse(JobGraph, await self.json.job_graph(_id(job_id)))

    async def leases(self, *, within_seconds: float | None = None) -> list[TaskLease]:
        """Running tasks, ordered by the time at which their leases expire: the first 200 only, because the list
        changes all the time."""
        return [parse(TaskLease, each) for each in await self.json.leases(MAX_ITEMS, within_seconds)]

    async def database_health(self) -> DatabaseHealth:
        """Sizes, dead rows, connections and the oldest transaction of the database."""
        return parse(DatabaseHealth, await self.json.database_health())

    async def workers(self) -> list[WorkerSummary]:
        """The workers that are alive or ended recently, with the tasks that they run."""
        return [worker async for worker in self._all(WorkerSummary, "/workers", None)]

    async def orchestrators(self) -> list[OrchestratorSummary]:
        return [orchestrator async for orchestrator in self._all(OrchestratorSummary, "/orchestrators", None)]

    async def queues(self) -> list[QueueSummary]:
        return [parse(QueueSummary, queue) for queue in await self.json.queues()]

    # The catalogue

    async def datasets(self) -> list[DatasetSummary]:
        """The published datasets, from the STAC catalogue of the map server."""
        datasets: list[DatasetSummary] = []
        collections = DatasetUrls("").collections()
        path = f"{collections}?limit={MAX_ITEMS}"
        while True:
            page = await self._maps.object("GET", path, prefix="")
            if not isinstance(page.get("collections"), list):
                raise unexpected("a page of the catalogue has no `collections`")
            base = self._maps.url
            datasets += [DatasetSummary.of(collection, base) for collection in page["collections"]]
            next_url = next((link["href"] for link in page.get("links", []) if link.get("rel") == "next"), None)
            if next_url is None or not page["collections"]:
                return datasets
            path = f"{collections}?{urljoin(base, next_url).partition('?')[2]}"

    async def dataset(self, dataset_id: str) -> DatasetSummary:
        """A published dataset."""
        try:
            collection = await self._maps.object("GET", DatasetUrls("").collection(dataset_id), prefix="")
        except NotFound as error:
            message = f"no dataset has the id {dataset_id}"
            raise NotFound(message, code="dataset.not-found", hint="see `client.datasets()`", **error.facts) from None
        return DatasetSummary.of(collection, self._maps.url)

    # Requests

    async def _job_when_available(self, job_id: JobId, deadline: float | None) -> JobDetail:
        """The job, as soon as the platform is available."""
        outage = _OutageLimit()
        while True:
            try:
                return await self.job(job_id)
            except Unavailable as error:
                outage.check(error)
                if deadline is not None and _now() >= deadline:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)

    async def _listen(self, job_id: str, after: int, changed: asyncio.Event) -> None:
        """Signal each event. Errors are raised by the request for the job."""
        with contextlib.suppress(Unavailable, NotFound):
            async for _ in self.json.follow(job_id, after):
                changed.set()
        changed.set()


class Client(Assets[AsyncClient], Layers[AsyncClient], Keys[AsyncClient], Uploads[AsyncClient]):
    """AsyncClient for scripts and notebooks: the same methods, which wait for the response. Threads may share it.

    with Client() as client:
        job = client.submit("hello_world", {"name": "Ada"})
        print(client.result(job.job_id))
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        key: str | None = None,
        maps: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        attempts: int = ATTEMPTS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        asynchronous = AsyncClient(
            server, key=key, maps=maps, timeout_seconds=timeout_seconds, attempts=attempts, headers=headers
        )
        super().__init__(asynchronous, EventLoopThread())
        self.json = JsonClient(asynchronous.json, self._thread)

    submit = blocking(AsyncClient.submit)
    job = blocking(AsyncClient.job)
    find_job = blocking(AsyncClient.find_job)
    jobs = iterating(AsyncClient.jobs)
    job_counts = blocking(AsyncClient.job_counts)
    watch = iterating(AsyncClient.watch)
    wait = blocking(AsyncClient.wait)
    result = blocking(AsyncClient.result)
    cancel = blocking(AsyncClient.cancel)
    resume = blocking(AsyncClient.resume)
    retry = blocking(AsyncClient.retry)
    change_jobs = blocking(AsyncClient.change_jobs)
    export_job = blocking(AsyncClient.export_job)
    nodes = iterating(AsyncClient.nodes)
    node = blocking(AsyncClient.node)
    output = blocking(AsyncClient.output)
    download_output = blocking(AsyncClient.download_output)
    events = iterating(AsyncClient.events)
    follow = iterating(AsyncClient.follow)
    logs = iterating(AsyncClient.logs)
    changes = iterating(AsyncClient.changes)
    workflows = blocking(AsyncClient.workflows)
    workflow = blocking(AsyncClient.workflow)
    definitions = blocking(AsyncClient.definitions)
    definition = blocking(AsyncClient.definition)
    workflow_statistics = blocking(AsyncClient.workflow_statistics)
    job_graph = blocking(AsyncClient.job_graph)
    leases = blocking(AsyncClient.leases)
    database_health = blocking(AsyncClient.database_health)
    workers = blocking(AsyncClient.workers)
    orchestrators = blocking(AsyncClient.orchestrators)
    queues = blocking(AsyncClient.queues)
    datasets = blocking(AsyncClient.datasets)
    dataset = blocking(AsyncClient.dataset)


class _OutageLimit:
    """Limits how long the platform may be unavailable during one call."""

    def __init__(self) -> None:
        self._since: float | None = None

    def check(self, error: Unavailable) -> None:
        """Raise the error if the outage has lasted too long."""
        self._since = self._since or _now()
        if _now() - self._since > MAX_OUTAGE_SECONDS:
            raise error

    def end(self) -> None:
        self._since = None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _id(job_id: JobId) -> str:
    try:
        return str(UUID(str(job_id)))
    except ValueError:
        hint = "pass the `job_id` of a submission; `find_job` finds a job by the beginning of its id"
        raise InvalidRequest(f"{str(job_id)!r} is not the id of a job", code="job.bad-id", hint=hint) from None


def _time(time: datetime | None) -> str | None:
    if time is None:
        return None
    return (time if time.tzinfo else time.astimezone()).isoformat()


def _intervention(reason: str | None) -> Json:
    return {} if reason is None else {"reason": reason}


def _batch_of(name: str, cursor: str, data: Any) -> ChangeBatch:
    fields = data if isinstance(data, dict) else {}
    match name:
        case "queues" | "instances":
            fields = {name: True}
        case "resync":
            fields = {"resync": fields.get("reason", "too_many")}
    return parse(ChangeBatch, {**fields, "cursor": cursor})


def _decoded(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise unexpected(f"an event is not JSON ({error})") from None


async def _wait_for(changed: asyncio.Event, seconds: float, deadline: float | None) -> None:
    await asyncio.sleep(_MIN_PAUSE_SECONDS)
    remaining_seconds = seconds if deadline is None else max(0.0, min(seconds, deadline - _now()))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(changed.wait(), remaining_seconds)
    changed.clear()


def _visible(detail: JobDetail) -> object:
    """The parts of a job whose changes a caller sees: states, events, and the progress of handlers."""
    return detail.job.status, detail.job.last_sequence, [(node.state, node.progress) for node in detail.nodes]


def _time_out(job_id: JobId, detail: JobDetail) -> NoReturn:
    raise WaitTimedOut(
        f"job {job_id} has not ended in time: it is {detail.status}",
        code="job.wait-timeout",
        hint="the job continues; wait again, or cancel it",
        job_id=str(job_id),
    )


def _failure(detail: JobDetail) -> JobFailed:
    reason = detail.job.stop_reason or detail.job.error_message
    first = next((node for node in detail.failed if node.error_message), None)
    where = f"node '{first.node_id}': {first.error_message}" if first else None
    return JobFailed(
        f"job {detail.job_id} ended as {detail.status}: {reason or where or 'no reason was recorded'}",
        code=f"job.{str(detail.status).replace('_', '-')}",
        hint="`client.resume(job_id)` runs the missing nodes; `client.job(job_id).failed` has the failed nodes",
        job_id=str(detail.job_id),
        job_status=str(detail.status),
        result=detail.result,
    )
