"""A job with its whole history as one JSON file, for a bug report or an archive.

The content is streamed from the database, so its size does not matter. Parts are read one after the other, not from one
snapshot: export a job after it has ended. `is_complete` is the last member: a file without it is incomplete.

Values that look like secrets (passwords in URLs, tokens, keys) are redacted everywhere.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson
from fastapi import APIRouter
from starlette.responses import StreamingResponse

from dagmaster import __version__
from dagmaster.access.permissions import Permission
from dagmaster.api.jobs import JobId
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.client.models.jobs import PublicJob
from dagmaster.errors import NotFound
from dagmaster.observe.redaction import redact_value
from dagmaster.web.authentication import requires

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=[requires(Permission.JOBS_READ)])

FORMAT, FORMAT_VERSION = "dagmaster-job", 1
_PAGE = 500
_DUMP = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS
ExportedRows = Sequence[dict[str, Any]]


@router.get(
    "/{job_id}/export",
    operation_id="export_job",
    summary="Download a job with its whole history",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The job, its definition, nodes, attempts, events, logs, checkpoints and janitor actions",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        **responses(404),
    },
)
async def export_job(services: Services, job_id: JobId) -> StreamingResponse:
    job = await services.reads.job(job_id)
    headers = {
        "Content-Disposition": f'attachment; filename="job-{job_id}.json"',
        "Cache-Control": "no-store",
    }
    content = _content(services, PublicJob.model_validate(job.model_dump()))
    return StreamingResponse(content, media_type="application/json", headers=headers)


async def _content(services: ApiServices, job: PublicJob) -> AsyncIterator[bytes]:
    head = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "software_version": __version__,
        "exported_at": datetime.now(UTC),
        "job": _without_duplicates(job.model_dump(mode="json")),
        "definition": await _definition(services, job.definition_hash),
    }
    yield _dumped(head)[:-1]
    for name, read in _lists(services, job.job_id).items():
        yield b',\n"%s":[' % name.encode()
        async for part in _items(read):
            yield part
        yield b"]"
    yield b',\n"is_complete":true}\n'


def _without_duplicates(job: dict[str, Any]) -> dict[str, Any]:
    """The job without the fields that repeat another field under a second name."""
    return {name: value for name, value in job.items() if name not in {"inputs", "result"}}


async def _definition(services: ApiServices, definition_hash: str) -> dict[str, Any] | None:
    try:
        return (await services.reads.graph(definition_hash)).workflow.body()
    except NotFound:
        return None


ReadPage = Callable[[Any], Awaitable[tuple[ExportedRows, Any]]]


def _lists(services: ApiServices, job_id: UUID) -> dict[str, ReadPage]:
    """The lists of the file. Each read gets the cursor of the page before, and returns a page and its cursor."""
    reads = services.reads

    async def nodes(after: Any) -> tuple[ExportedRows, Any]:
        rows = await reads.export_rows("export_nodes", job_id, after or {"node_id": ""}, _PAGE)
        return rows, rows and {"node_id": rows[-1]["node_id"]}

    async def attempts(after: Any) -> tuple[ExportedRows, Any]:
        rows = await reads.export_rows("export_attempts", job_id, after or {"node_id": "", "attempt": 0}, _PAGE)
        return rows, rows and {"node_id": rows[-1]["node_id"], "attempt": rows[-1]["attempt"]}

    async def events(after: Any) -> tuple[ExportedRows, Any]:
        page = await reads.page_events(job_id, limit=_PAGE, after=after or 0)
        return [dict(event) for event in page], page and page[-1].sequence

    async def logs(after: Any) -> tuple[ExportedRows, Any]:
        lines = await reads.log_lines(job_id, limit=_PAGE, after=after or ("", 0, 0))
        last = lines[-1] if lines else None
        return [dict(line) for line in lines], last and (last.node_id, last.attempt, last.number)

    async def checkpoints(after: Any) -> tuple[ExportedRows, Any]:
        rows = await reads.export_rows("export_checkpoints", job_id, after or {"node_id": "", "name": ""}, _PAGE)
        return rows, rows and {"node_id": rows[-1]["node_id"], "name": rows[-1]["name"]}

    async def janitor_actions(after: Any) -> tuple[ExportedRows, Any]:
        actions = await reads.janitor_actions(limit=_PAGE, after=after, target_id=str(job_id))
        return [dict(action) for action in actions], actions and (actions[-1].created_at, actions[-1].action_id)

    return {
        "nodes": nodes,
        "attempts": attempts,
        "events": events,
        "logs": logs,
        "checkpoints": checkpoints,
        "janitor_actions": janitor_actions,
    }


async def _items(read: ReadPage) -> AsyncIterator[bytes]:
    """The items of all pages, as elements of a JSON array."""
    is_first, after = True, None
    while True:
        rows, after = await read(after)
        if rows:
            separator = b"\n" if is_first else b",\n"
            yield separator + b",\n".join(map(_dumped, rows))
            is_first = False
        if len(rows) < _PAGE:
            return


def _dumped(value: Any) -> bytes:
    plain = orjson.loads(orjson.dumps(value, option=_DUMP, default=str))
    return orjson.dumps(redact_value(plain), option=_DUMP)
