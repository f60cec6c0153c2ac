"""A stolen key of a worker cannot change tasks that other workers hold, and no request with it causes a server error.

Two partners have keys that are limited to their queues; a third worker has a database. All hold tasks.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from httpx2 import AsyncClient

from dagmaster.client.models.worker import MAX_CLAIMED, MAX_REPORTS, PROTOCOL
from dagmaster.database.ledger.protocol import Demand
from dagmaster.jobs.payload import INLINE_BYTES, LOADABLE_BYTES, reference_to
from tests.api.serving import V1
from tests.engine.harness import Engine, engine, workflow
from tests.hostile import BODIES, EVALUATED, INJECTIONS, body_of, operations, url_of, with_injection
from tests.worker.over_http import a_key, client_with, platform

pytestmark = pytest.mark.requirement("E7", "X1")

TWO_PARTNERS = workflow("""
    workflow_id: two_partners
    inputs: {text: {type: string}}
    nodes:
      start: {type: start, next: [ours, theirs, internal]}
      ours: {handler: give, queue: functionapp-tasks, params: {value: 1}, next: end}
      theirs:
        handler: give
        queue: container-tasks
        params: {value: ["{{ inputs.text }}", "{{ inputs.text }}"]}
        next: end
      internal: {handler: give, params: {value: 2}, next: end}
      end: {type: end, depends_on: {all_of: [ours, theirs, internal]}}
""")
OURS, OTHERS, INTERNAL = "functionapp-tasks", "container-tasks", "dag-worker-tasks"


@dataclass
class Partner:
    client: AsyncClient
    worker_id: str
    queue: str
    tasks: list[dict[str, Any]]

    async def send(self, method: str, path: str, worker_id: Any = None, **options: Any) -> Any:
        return await self.client.request(method, f"{V1}/worker/{worker_id or self.worker_id}{path}", **options)

    async def claim(self, queue: str | None = None) -> Any:
        return await self.send("POST", "/exchange", json=a_demand(queue or self.queue))


@dataclass
class Scene:
    running: Engine
    app: Any
    job_id: UUID
    us: Partner
    them: Partner
    internal: Any  # the task of a worker with a database
    internal_worker: UUID

    async def state(self) -> Any:
        tasks = await self.running.tasks(self.job_id)
        facts = ("node_id", "attempt", "status", "worker_id", "lease_until", "progress", "log")
        tables = [
            await self.running.rows(f"SELECT * FROM dagapp.{table} WHERE job_id = %s", self.job_id)
            for table in ("dag_task_results", "dag_checkpoints", "dag_payloads")
        ]
        return [{name: task[name] for name in facts} for task in tasks], tables


def a_demand(queue: str, **changes: Any) -> dict[str, Any]:
    demand = {"queues": [queue], "light_handlers": ["give"], "light": 5}
    return {"reports": [], "demand": demand, "lease_seconds": 60} | changes


@asynccontextmanager
async def a_scene(database: str) -> AsyncIterator[Scene]:
    """Each of the three workers holds its task, and orchestrators have nothing to do but to wait."""
    internal_id = uuid4()
    async with (
        engine(database, workers=0, verify_history=False, task_lease_sec=600) as running,
        platform(database, task_lease_sec=600) as app,
    ):
        job_id = await running.submit(TWO_PARTNERS, text="canary-" * 30_000)
        while len(await running.tasks(job_id)) < 3:
            await asyncio.sleep(0.02)
        partners = []
        for name, queue in (("ours", OURS), ("others", OTHERS)):
            client = client_with(app, await a_key(database, name, queues=[queue]))
            start = {"host": name, "software_version": "1", "protocol": PROTOCOL}
            started = (await client.post(f"{V1}/worker/start", json=start)).json()
            partner = Partner(client, started["worker_id"], queue, [])
            partner.tasks = (await partner.claim()).json()["claimed"]
            partners.append(partner)
        internal = (
            await running.ledger.exchange(internal_id, [], Demand((INTERNAL,), ("give",), 5), lease_seconds=600)
        ).claimed
        yield Scene(running, app, job_id, *partners, internal[0], internal_id)
        for partner in partners:
            await partner.client.aclose()


def a_report(task: dict[str, Any], **changes: Any) -> dict[str, Any]:
    key = {name: task[name] for name in ("job_id", "node_id", "attempt")}
    return {**key, "status": "succeeded", "output": "stolen"} | changes


def a_batch(*reports: Any) -> dict[str, Any]:
    return {"reports": reports, "demand": {}, "lease_seconds": 60}


def a_renewal(held: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    return "POST", "/renew", {"json": {"held": [held], "lease_seconds": 60}}


async def test_a_partner_cannot_read_or_change_tasks_of_others(database):
    async with a_scene(database) as scene:
        us, them = scene.us, scene.them
        (their_task,) = them.tasks
        internal = {"job_id": str(scene.job_id), "node_id": "internal", "attempt": 1}
        foreign_ids = [their_task["task_id"], scene.internal.task_id]
        before = await scene.state()

        async def every_call(partner: Partner, worker_id: Any, task_id: str, report: Any) -> dict[str, Any]:
            held = {"held": [{name: report[name] for name in ("job_id", "node_id", "attempt")}], "lease_seconds": 999}
            path, send = f"/tasks/{task_id}", partner.send
            return {
                "report": await send("POST", "/report", worker_id, json=a_batch(report)),
                "exchange": await send("POST", "/exchange", worker_id, json=a_batch(report)),
                "renew": await send("POST", "/renew", worker_id, json=held),
                "stops": await send("POST", "/stops", worker_id),
                "params": await send("GET", f"{path}/params", worker_id),
                "results": await send("GET", f"{path}/results?offset=0&limit=5", worker_id),
                "checkpoints": await send("GET", f"{path}/checkpoints", worker_id),
                "save": await send("PUT", f"{path}/checkpoints", worker_id, json={"name": "x", "data": 1}),
                "output": await send("PUT", f"{path}/output", worker_id, json="x"),
            }

        own_id, acting = [], []
        for task_id, report in zip(foreign_ids, (a_report(their_task), a_report(internal)), strict=True):
            own_id.append(await every_call(us, None, task_id, report))
        for worker_id in (them.worker_id, scene.internal_worker):
            acting.append(await every_call(us, worker_id, foreign_ids[0], a_report(their_task)))
            acting[-1]["retire"] = await us.send("DELETE", "", worker_id)
            acting[-1]["wait"] = await us.send(
                "POST", "/wait", worker_id, json={"queues": [OURS], "handlers": ["give"], "seconds": 0}
            )
        after = await scene.state()

    assert after == before
    for responses in own_id:
        late = [responses[name].json()["late"] for name in ("report", "exchange")]
        assert all(len(each) == 1 for each in late)
        assert len(responses["renew"].json()["task_ids"]) == 1
        assert responses["stops"].json() == {"task_ids": []}
        assert responses["save"].json() == {"is_saved": False}
        for name in ("params", "results", "checkpoints", "output"):
            assert (responses[name].status_code, responses[name].json()["code"]) == (404, "worker.not-held"), name
    for responses in acting:
        assert {response.status_code for response in responses.values()} == {403}
        assert {response.json()["code"] for response in responses.values()} == {"worker.not-yours"}
    assert "canary" not in "".join(a.text for responses in (*own_id, *acting) for a in responses.values())


async def test_a_partner_claims_and_announces_only_its_own_queues(database):
    async with a_scene(database) as scene:
        us = scene.us
        heartbeat = {"host": "h", "pid": 1, "software_version": "1", "worker_type": "t", "handlers": ["give"]}
        refused = [
            await us.claim(OTHERS),
            await us.claim(INTERNAL),
            await us.send("POST", "/report", json=a_demand(OTHERS)),
            await us.send("POST", "/exchange", json=a_demand(OURS, demand={"queues": [OURS, OTHERS]})),
            await us.send("POST", "/wait", json={"queues": [OTHERS], "handlers": ["give"], "seconds": 0}),
            await us.send("PUT", "/heartbeat", json={**heartbeat, "queues": [OTHERS]}),
        ]
        accepted = await us.send("PUT", "/heartbeat", json={**heartbeat, "queues": [OURS]})
        # A worker session that was started with the key has the limits of the key.
        key = us.client.headers["authorization"].removeprefix("Bearer ")
        browser = client_with(scene.app, None)
        signed_in = await browser.post(f"{V1}/session", json={"key": key}, headers={"Origin": "http://localhost"})
        who = (await browser.get(f"{V1}/caller")).json()
        await browser.aclose()
        report = {"task_id": scene.them.tasks[0]["task_id"], "worker_id": scene.them.worker_id, "status": "succeeded"}
        foreign_report = await us.client.post(f"{V1}/callbacks/task-result", json=report)

    assert {response.status_code for response in refused} == {403}
    assert {response.json()["code"] for response in refused} == {"worker.queue-not-allowed"}
    assert accepted.status_code == 200
    assert signed_in.status_code == 201
    assert who["queues"] == [OURS]
    assert (foreign_report.status_code, foreign_report.json()["code"]) == (403, "worker.not-yours")


async def test_a_worker_may_use_every_route_for_its_task_until_the_task_is_lost(database):
    """The counterpart of the attacks: the holder of a task may do, once, everything that others may not."""
    async with a_scene(database) as scene:
        them, task = scene.them, scene.them.tasks[0]
        path, content = f"/tasks/{task['task_id']}", json.dumps("x" * INLINE_BYTES).encode()
        params = await them.send("GET", f"{path}/params")
        saved = await them.send("PUT", f"{path}/checkpoints", json={"name": "phase", "data": {"x": 1}})
        loaded = await them.send("GET", f"{path}/checkpoints")
        stored = await them.send("PUT", f"{path}/output", content=content)
        no_results = await them.send("GET", f"{path}/results?offset=0&limit=5")
        report = a_report(task, output=None, output_ref=stored.json())
        first = await them.send("POST", "/report", json=a_batch(report))
        again = await them.send("POST", "/report", json=a_batch(report))
        afterwards = await them.send("GET", f"{path}/params")

    assert reference_to(params.content) == task["params_ref"]
    assert saved.json() == {"is_saved": True}
    assert [each["data"] for each in loaded.json()["checkpoints"]] == [{"x": 1}]
    assert stored.json() == reference_to(content)
    assert (no_results.status_code, no_results.json()["code"]) == (400, "params.no-results-of")
    assert first.json() == again.json() == {"claimed": [], "accepted": 1, "late": []}
    assert afterwards.status_code == 404


HOSTILE_REPORTS = {
    "NaN": b'{"output": NaN}',
    "infinity": b'{"metrics": {"a": -Infinity}}',
    "overflow": b'{"output": 1e999}',
    "NUL in the output": b'{"output": "\\u0000"}',
    "NUL in the node": b'{"node_id": "a\\u0000b"}',
    "surrogate": b'{"output": "\\ud800"}',
    "huge integer": b'{"output": 1' + b"0" * 40 + b"}",
    "deep": b'{"output": ' + b"[" * 300 + b"]" * 300 + b"}",
    "inline output too large": b'{"output": "' + b"x" * (INLINE_BYTES + 1) + b'"}',
    "attempt 0": b'{"attempt": 0}',
    "attempt beyond an integer": b'{"attempt": 4294967296}',
    "a failure without an error": b'{"status": "failed"}',
    "a blame of its own": b'{"status": "failed", "error": {"message": "m", "blame": "you"}}',
    "an error of a megabyte": b'{"status": "failed", "error": {"message": "m", "blame": "data", "x": ["'
    + b"y" * 70_000
    + b'"]}}',
    "a status of the engine": b'{"status": "lost"}',
    "a reference that is none": b'{"output": null, "output_ref": {"sha256": "../../x", "bytes": -1}}',
    "a reference to nothing": b'{"output": null, "output_ref": {"sha256": "' + b"0" * 64 + b'", "bytes": 3}}',
    "both outputs": b'{"output_ref": {"sha256": "' + b"0" * 64 + b'", "bytes": 3}}',
    "log lines that are none": b'{"log": [{"number": "x", "at": 3, "level": [], "text": null}]}',
    "an unknown field": b'{"evil": 1}',
}


async def test_invalid_values_are_refused_with_a_problem_and_change_nothing(database):
    async with a_scene(database) as scene:
        us, task = scene.us, scene.us.tasks[0]
        before = await scene.state()
        responses = {}
        for name, changes in HOSTILE_REPORTS.items():
            key = json.dumps(a_report(task)).encode()
            report = key[:-1] + b", " + changes[1:]  # a later field replaces an earlier one
            body = b'{"reports": [' + report + b'], "demand": {}, "lease_seconds": 60}'
            headers = {"Content-Type": "application/json"}
            responses[name] = await us.send("POST", "/report", content=body, headers=headers)
        path = f"/tasks/{task['task_id']}"
        held = {name: task[name] for name in ("job_id", "node_id", "attempt")}
        for name, (method, where, options) in {
            "too many reports": ("POST", "/report", {"json": a_batch(*[a_report(task)] * (MAX_REPORTS + 1))}),
            "too large a body": ("POST", "/report", {"content": b"x" * 1_100_000}),
            "too many tasks": (
                "POST",
                "/exchange",
                {"json": a_demand(OURS, demand={"queues": [OURS], "light": MAX_CLAIMED + 1})},
            ),
            "a lease of a year": ("POST", "/renew", {"json": {"held": [], "lease_seconds": 3.2e7}}),
            "a lease that is no number": ("POST", "/renew", {"content": b'{"held": [], "lease_seconds": NaN}'}),
            "a start in the future": a_renewal(held | {"run_seconds": -1000}),
            "a start before all times": a_renewal(held | {"run_seconds": 1e300}),
            "a wait of an hour": ("POST", "/wait", {"json": {"queues": [OURS], "handlers": [], "seconds": 3600}}),
            "no task id": ("GET", "/tasks/x/params", {}),
            "a traversal": ("GET", "/tasks/..%2F..%2Fetc/params", {}),
            "an output that is no JSON": ("PUT", f"{path}/output", {"content": b'{"a": NaN}'}),
            "an output that is two": ("PUT", f"{path}/output", {"content": b'1,"evil":2'}),
            "an output with NUL": ("PUT", f"{path}/output", {"content": b'"\\u0000"'}),
            "an output that is too deep": ("PUT", f"{path}/output", {"content": b"[" * 900 + b"]" * 900}),
            "an output that is too large": ("PUT", f"{path}/output", {"content": b'"' + b"x" * LOADABLE_BYTES}),
            "a checkpoint with NaN": ("PUT", f"{path}/checkpoints", {"content": b'{"name": "x", "data": NaN}'}),
            "a checkpoint with NUL": ("PUT", f"{path}/checkpoints", {"json": {"name": "a\0", "data": 1}}),
            "results before the first": ("GET", f"{path}/results?offset=-1&limit=5", {}),
            "all results": ("GET", f"{path}/results?offset=0&limit=1000000", {}),
        }.items():
            headers = {"Content-Type": "application/json"} if "content" in options else {}
            responses[name] = await us.send(method, where, **options, headers=headers)
        after = await scene.state()

    assert {name: a.status_code for name, a in responses.items() if not 400 <= a.status_code < 500} == {}
    assert all(response.json()["code"] for response in responses.values())
    assert after == before


async def test_invalid_heartbeats_and_progress_do_not_break_the_pages_of_operators(database):
    """The pages of operators are read with SQL that casts values to numbers."""
    async with a_scene(database) as scene:
        us, task = scene.us, scene.us.tasks[0]
        key = {name: task[name] for name in ("job_id", "node_id", "attempt")}
        base = {"host": "h" * 200, "pid": 1, "software_version": "1", "worker_type": "t", "queues": [OURS]}
        stats = {
            "started_per_minute": {OURS: 1e15, OTHERS: 5.0},
            "finished_per_minute": "text",
            "running": {"x": 1.0},
            "health_url": "javascript:alert(1)",
        }
        beats = [
            await us.send("PUT", "/heartbeat", json={**base, "handlers": ["give"] * 2000, "stats": stats}),
            await us.send("PUT", "/heartbeat", json={**base, "handlers": [], "stats": {"a": {"b": {"c": 1}}}}),
            await us.send("PUT", "/heartbeat", json={**base, "handlers": ["give"], "stats": {"a": "x" * 300}}),
        ]
        progress = {"fraction": "NaN", "message": {"a": "b"}, "count": [1], "x" * 200: "y" * 5000}
        line = {"number": 1, "at": "2030-01-01T00:00:00Z", "level": "info", "text": "?sig=secret-canary&x \x1b[31m"}
        held = {"held": [{**key, "progress": progress, "log": [line]}], "lease_seconds": 60}
        renewed = await us.send("POST", "/renew", json=held)
        admin = client_with(scene.app, await a_key(database, "admin", scopes=("admin",)))
        pages = [
            await admin.get(f"{V1}/{page}")
            for page in (
                "workers",
                "queues",
                "stats",
                f"jobs/{scene.job_id}",
                f"jobs/{scene.job_id}/waiting",
                f"jobs/{scene.job_id}/logs",
                f"jobs/{scene.job_id}/nodes/ours",
            )
        ]
        await admin.aclose()

    assert [beat.status_code for beat in beats] == [200, 422, 422]
    assert renewed.json() == {"task_ids": []}
    assert {page.status_code for page in pages} == {200}
    (worker,) = pages[0].json()["items"]
    assert worker["stats"]["started_per_minute"] == {OURS: 1e15}
    assert "running" not in worker["stats"]
    assert "finished_per_minute" not in worker["stats"]
    assert "secret-canary" not in "".join(page.text for page in pages)


async def test_a_lease_is_never_longer_than_the_setting_of_the_platform(database):
    async with a_scene(database) as scene:
        us, task = scene.us, scene.us.tasks[0]
        key = {name: task[name] for name in ("job_id", "node_id", "attempt")}
        await us.send("POST", "/renew", json={"held": [key], "lease_seconds": 80_000})

        sql = "SELECT extract(epoch FROM lease_until - dagapp.clock()) FROM dagapp.dag_tasks WHERE node_id = 'ours'"
        seconds = await scene.running.value(sql)

    assert seconds <= 600


async def test_other_callers_and_old_workers_are_refused_with_a_reason(database):
    async with a_scene(database) as scene:
        start = {"host": "h", "software_version": "0", "protocol": PROTOCOL}
        anonymous = client_with(scene.app, None)
        operator = client_with(scene.app, await a_key(database, "operator", scopes=("operator",)))
        responses = [
            await anonymous.post(f"{V1}/worker/start", json=start),
            await operator.post(f"{V1}/worker/start", json=start),
            await scene.us.client.post(f"{V1}/worker/start", json=start | {"protocol": 0}),
            await scene.us.client.post(f"{V1}/worker/start", json=start | {"protocol": PROTOCOL + 1}),
            await scene.us.client.get(f"{V1}/jobs"),
            await scene.us.client.get(f"{V1}/workers"),
        ]
        await anonymous.aclose()
        await operator.aclose()

    assert [(response.status_code, response.json()["code"]) for response in responses] == [
        (401, "auth.required"),
        (403, "auth.not-allowed"),
        (409, "worker.too-old"),
        (409, "worker.too-new"),
        (403, "auth.not-allowed"),
        (403, "auth.not-allowed"),
    ]


async def test_invalid_bodies_on_every_route_of_workers_never_cause_a_server_error(database):
    """As in the tests of the gateway: every field of every route, and bodies that are not JSON."""
    async with a_scene(database) as scene:
        us = scene.us
        description = scene.app.openapi()
        known = {"worker_id": us.worker_id, "task_id": us.tasks[0]["task_id"]}
        faults = []
        for operation in operations(description, "POST", "PUT"):
            if "/worker/" not in operation.path:
                continue
            url = url_of(operation, known)
            bodies = list(BODIES.items())
            body = body_of(description, operation)
            for text in INJECTIONS if body is not None else ():
                bodies += [
                    (f"{field}: {text!r}", json.dumps(changed).encode())
                    for field, changed in with_injection(body, text)
                ]
            for name, content in bodies:
                headers = {"Content-Type": "application/json"}
                response = await us.client.request(operation.method, url, content=content, headers=headers)
                if response.status_code >= 500 or EVALUATED in response.text:
                    faults.append((operation.name, name, response.status_code, response.text[:200]))

    assert faults == []
