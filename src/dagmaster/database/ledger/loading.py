"""Jobs and outputs as they are stored: what orchestrators and reruns read before they decide."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson
from psycopg.rows import dict_row

from dagmaster.database.connect import Connection
from dagmaster.database.ledger import payloads
from dagmaster.database.ledger.connection import LedgerConnection, columns_of, fetch
from dagmaster.database.ledger.protocol import (
    OPENING_EVENTS,
    SMALL_BYTES,
    LoadedJob,
    opening_nodes,
    too_large_for_a_template,
)
from dagmaster.database.notify.notifier import Notifier
from dagmaster.database.queries import query
from dagmaster.database.reads.lenient import UnreadableJson
from dagmaster.errors import NotFound, UnfitData
from dagmaster.jobs import fan, payload
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.payload import LOADABLE_BYTES, Reference, by_reference
from dagmaster.jobs.states import JobStatus, Stop
from dagmaster.jobs.view import NodeView
from dagmaster.workflows.model import Aggregation, Workflow

DEFINITIONS_KEPT = 256
RESULTS_PAGE = 500


class JobLoading(LedgerConnection):
    def __init__(self, dsn: str, role: str = "ledger", notifier: Notifier | None = None) -> None:
        super().__init__(dsn, role, notifier)
        self._definitions: dict[str, Workflow] = {}

    async def load_jobs(self, job_ids: Sequence[UUID]) -> list[LoadedJob]:
        async with self._connected() as connection:
            return await self._load(connection, job_ids)

    async def load_job(self, job_id: UUID) -> LoadedJob | None:
        return next(iter(await self.load_jobs([job_id])), None)

    async def _load(self, connection: Connection, job_ids: Sequence[UUID]) -> list[LoadedJob]:
        cursor = connection.cursor(row_factory=dict_row)
        jobs = await (await cursor.execute(query("load_jobs"), {"job_ids": list(job_ids)}, prepare=True)).fetchall()
        workflows = await self._definitions_of(connection, {job["definition_hash"] for job in jobs})
        nodes = await _load_nodes(connection, jobs, workflows)
        return [_loaded(job, workflows[job["definition_hash"]], nodes[job["job_id"]]) for job in jobs]

    async def _definitions_of(self, connection: Connection, hashes: Collection[str]) -> dict[str, Workflow]:
        """A definition is identified by the hash of its content, so a cached one never changes."""
        missing = [digest for digest in hashes if digest not in self._definitions]
        if missing:
            for row in await fetch(connection, "load_definitions", {"hashes": missing}):
                self._definitions[row.definition_hash] = Workflow.model_validate(row.body)
        definitions = {digest: self._definitions[digest] for digest in hashes}
        while len(self._definitions) > DEFINITIONS_KEPT:
            self._definitions.pop(next(iter(self._definitions)))
        return definitions

    async def load_outputs(self, job_id: UUID, node_ids: Sequence[str]) -> dict[str, Any]:
        return await self._load_outputs(job_id, node_ids, _load_referenced)

    async def load_output_references(self, job_id: UUID, node_ids: Sequence[str]) -> dict[str, Any]:
        return await self._load_outputs(job_id, node_ids, _keep_reference)

    async def _load_outputs(self, job_id: UUID, node_ids: Sequence[str], resolve: "_ResolveOutput") -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        async with self._connected() as connection:
            for row in await fetch(connection, "load_outputs", {"job_id": job_id, "node_ids": list(node_ids)}):
                if isinstance(row.output, UnreadableJson):
                    raise unreadable(f"the output of '{row.node_id}'")
                is_inline = row.output_ref is None
                outputs[row.node_id] = row.output if is_inline else await resolve(connection, job_id, row)
        return outputs


_ResolveOutput = Callable[[Connection, UUID, Any], Awaitable[Any]]


async def _load_nodes(
    connection: Connection, jobs: Sequence[dict[str, Any]], workflows: Mapping[str, Workflow]
) -> dict[UUID, list[dict[str, Any]]]:
    """The rows of the definition's nodes. They are not read for a job that has only its first events: every change
    adds an event, so its nodes are unchanged."""
    keys = [
        (job["job_id"], node_id)
        for job in jobs
        if job["last_sequence"] > OPENING_EVENTS
        for node_id in workflows[job["definition_hash"]].nodes
    ]
    nodes: dict[UUID, list[dict[str, Any]]] = defaultdict(list)
    if keys:
        values = {**columns_of(("job_ids", "node_ids"), keys), "small": SMALL_BYTES}
        cursor = connection.cursor(row_factory=dict_row)
        for row in await (await cursor.execute(query("load_nodes"), values, prepare=True)).fetchall():
            nodes[row["job_id"]].append(row)
    return nodes


def unreadable(subject: str) -> UnfitData:
    return UnfitData(
        f"{subject} cannot be read: it has a number beyond 64 bits, or is nested too deeply", code="value.unreadable"
    )


def _loaded(job: dict[str, Any], workflow: Workflow, rows: Sequence[dict[str, Any]]) -> LoadedJob:
    if isinstance(job["input_params"], UnreadableJson):
        raise unreadable("an input of the job")
    if job["last_sequence"] <= OPENING_EVENTS:
        nodes = {node["node_id"]: NodeView(node["status"]) for node in opening_nodes(workflow)}
    else:
        nodes = {row["node_id"]: NodeView.from_row(workflow.nodes[row["node_id"]], row) for row in rows}
    return LoadedJob(
        **{**job, "status": JobStatus(job["status"]), "stopping": Stop(job["stopping"]) if job["stopping"] else None},
        workflow=workflow,
        nodes=nodes,
        # Unreadable outputs are left out: a node that needs one fails when it loads the output.
        outputs={
            row["node_id"]: row["output"]
            for row in rows
            if row["has_output"] and not isinstance(row["output"], UnreadableJson)
        },
    )


async def _keep_reference(_: Connection, __: UUID, row: Any) -> Any:
    return by_reference(row.output_ref)


async def _load_referenced(connection: Connection, job_id: UUID, row: Any) -> Any:
    """Load an output that is stored by reference, if it is small enough for a template."""
    reference = row.output_ref
    if reference.get("bytes", 0) > LOADABLE_BYTES:
        raise too_large_for_a_template(row.node_id, reference["bytes"])
    if payload.is_payload(reference):
        return orjson.loads(await payloads.load(connection, job_id, reference))
    if "results_of" not in reference:
        raise NotFound(
            f"the output of '{row.node_id}' is stored under a reference of an unknown kind",
            code="output.unknown-reference",
        )
    return await _gather_again(connection, job_id, reference)


async def _gather_again(connection: Connection, job_id: UUID, reference: Reference) -> Any:
    """The output of a fan_in that is stored as a reference to its children's results."""
    fan_out = reference["results_of"]
    rows = await fetch(connection, "fan_out_total", {"job_id": job_id, "node_id": fan_out})
    total = rows[0].total if rows else 0
    children: list[ChildResult] = []
    while len(children) < total:
        first = len(children)
        page = range(first, min(first + RESULTS_PAGE, total))
        results = await payloads.read_results(connection, job_id, fan_out, page)
        if not results:
            break
        children += results
    return fan.aggregate(Aggregation(reference["aggregation"]), children)
