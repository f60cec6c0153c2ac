"""Traces, from the request that submits a job to its tasks and callbacks, as a collector receives them."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from dagmaster.gateway.app import create_app as create_gateway
from dagmaster.handlers.registry import Registration
from dagmaster.observe import log, traces
from dagmaster.serving.app import create_app as create_maps
from dagmaster.settings import Settings
from tests.api.serving import api, ok
from tests.callbacks.receivers import receiver
from tests.engine.harness import engine, workflow
from tests.engine.processes import fleet
from tests.engine.test_callbacks import delivered, submit_job
from tests.traces import Collector, facts, traced

pytestmark = pytest.mark.requirement("M1")
OUTSIDE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CANARY = "canary-5f1c77"


@pytest.fixture
def collector() -> Iterator[Collector]:
    started = Collector()
    yield started
    traces.shutdown()
    started.close()


SHAPES = """
    workflow_id: shapes
    nodes:
      start: {type: start, next: first}
      first: {handler: give, params: {value: 1}, next: flaky}
      flaky:
        handler: fail_twice
        params: {token: canary-5f1c77, note: canary-5f1c77}
        retry: {max_attempts: 3, initial_delay_seconds: 0.01, jitter: false, backoff: fixed}
        next: split
      split:
        type: fan_out
        source: [1, 2, 3]
        task: {handler: traced_plain, params: {value: "{{ item }}"}}
        next: end
      end: {type: end}
"""


async def fail_twice(ctx: Any) -> None:
    if ctx.attempt < 3:
        raise ValueError(f"failed with {CANARY}")


def traced_plain(ctx: Any) -> dict[str, Any]:
    """Runs in a child process."""
    ctx.logger.warning("from a child process")
    return {"traceparent": ctx.traceparent}


HANDLERS = (
    Registration("fail_twice", "tests.engine.test_traces:fail_twice"),
    Registration("traced_plain", "tests.engine.test_traces:traced_plain", is_async=False),
)


async def test_one_trace_leads_from_the_request_to_every_attempt(database, collector, capfd):
    with traced(collector, headers="authorization=secret-of-collector"):
        async with engine(database, handlers=HANDLERS) as running, api(database, running) as http:
            running.add(workflow(SHAPES))
            sent = await ok(
                http.post("/api/v1/jobs", json={"workflow_id": "shapes"}, headers={"traceparent": OUTSIDE}), 202
            )
            job = await running.wait(sent["job_id"], 30)
            children = [
                node for node in (await running.nodes(job["job_id"])).values() if node["parent_node_id"] == "split"
            ]

    assert job["status"] == "completed", job["error_message"]
    by_id = {span.span_id.hex(): span for span in collector.spans}
    assert {span.trace_id.hex() for span in collector.spans} == {OUTSIDE.split("-")[1]}
    (request,) = [span for span in collector.named("POST") if facts(span)["http.route"] == "/api/v1/jobs"]
    (submitted,) = collector.named("submit job")
    assert request.parent_span_id.hex() == OUTSIDE.split("-")[2]
    assert submitted.parent_span_id == request.span_id
    steps = collector.named("advance job")
    assert {step.parent_span_id for step in steps} == {submitted.span_id}
    attempts = [span for span in collector.spans if span.name.startswith("task ")]
    assert sorted((facts(span)["node_id"], facts(span)["attempt"]) for span in attempts) == [
        ("first", 1),
        *(("flaky", attempt) for attempt in (1, 2, 3)),
        *((f"split__{index}", 1) for index in range(3)),
    ]
    assert {by_id[span.parent_span_id.hex()].name for span in attempts} == {"advance job"}
    failed = [span for span in attempts if facts(span).get("outcome") == "failed"]
    assert [facts(span)["attempt"] for span in failed] == [1, 2]
    assert all(span.status.code == 2 for span in failed)
    inside = {node["output"]["traceparent"].split("-")[2] for node in children}
    assert inside == {span.span_id.hex() for span in attempts if span.name == "task traced_plain"}
    assert collector.headers[0]["authorization"] == "secret-of-collector"
    assert not any(CANARY.encode() in body for body in collector.bodies)
    lines = [line for line in capfd.readouterr().err.splitlines() if "from a child process" in line]
    assert len(lines) == 3
    assert all(f"trace_id={OUTSIDE.split('-')[1]}" in line and "span_id=" in line for line in lines)


async def test_real_processes_export_one_trace_with_tasks_and_callback(database, collector, tmp_path):
    async def exported() -> bool:
        return bool(collector.named("deliver callback") and collector.named("task echo"))

    options = {"allow_private_webhooks": True, "otel_exporter_otlp_endpoint": collector.url}
    async with receiver() as hook, fleet(database, tmp_path, orchestrators=1, workers=1, **options) as running:
        with traced(collector):
            await submit_job(database, hook.url)
        await delivered(running, 1)
        await running.until(exported, 10, "the spans of both processes")
    (submitted,) = collector.named("submit job")
    (attempt,) = collector.named("task echo")
    (callback,) = collector.named("deliver callback")
    steps = {step.span_id: step for step in collector.named("advance job")}

    assert {span.trace_id for span in collector.spans} == {submitted.trace_id}
    assert {step.parent_span_id for step in steps.values()} == {submitted.span_id}
    assert attempt.parent_span_id in steps
    assert callback.parent_span_id == submitted.span_id
    (request,) = hook.requests
    assert request.headers["traceparent"] == f"00-{callback.trace_id.hex()}-{callback.span_id.hex()}-01"


MANY = f"""
    workflow_id: many
    nodes:
      start: {{type: start, next: split}}
      split:
        type: fan_out
        source: {list(range(300))}
        task: {{handler: give}}
        next: end
      end: {{type: end}}
"""


async def test_only_the_first_children_of_a_large_fan_out_are_traced(database, collector):
    with traced(collector):
        async with engine(database, traces_fan_out_limit=20) as running:
            await running.run(workflow(MANY))

    attempts = collector.named("task give")
    assert {facts(span)["node_id"] for span in attempts} == {f"split__{index}" for index in range(20)}
    assert len(collector.named("advance job")) <= 21


async def test_a_trace_that_is_not_sampled_is_not_stored(database, collector):
    with traced(collector, ratio=0.0):
        async with engine(database) as running:
            await running.run("hello_world")
            stored = await running.rows(
                "SELECT traceparent FROM dagapp.dag_jobs UNION ALL SELECT traceparent FROM dagapp.dag_tasks"
            )
    assert {row["traceparent"] for row in stored} == {None}
    assert collector.spans == []

    with traced(collector, ratio=0.0):
        async with engine(database) as running, api(database, running) as http:
            sent = await ok(
                http.post("/api/v1/jobs", json={"workflow_id": "echo_test"}, headers={"traceparent": OUTSIDE}), 202
            )
            await running.wait(sent["job_id"])
    assert len(collector.named("task echo")) == 1, "the client has decided that this trace is sampled"


async def test_a_collector_that_is_down_delays_nothing(database):
    """Its address accepts no connections; the queue of spans is full."""
    traces.configure("test", "http://127.0.0.1:9")
    try:
        started = time.perf_counter()
        for number in range(3 * traces.QUEUE_SPANS):
            with traces.span("lost", number=number):
                pass
        spent = time.perf_counter() - started
        async with engine(database) as running:
            job = await running.run("hello_world")
        started = time.perf_counter()
    finally:
        traces.shutdown()

    assert job["status"] == "completed"
    assert spent / (3 * traces.QUEUE_SPANS) < 0.001
    assert time.perf_counter() - started < traces.SHUTDOWN_SECONDS + 1


async def test_a_malformed_traceparent_is_ignored(database, collector):
    sent = ["", "x", OUTSIDE.replace("00-", "01-", 1), f"00-{'0' * 32}-00f067aa0ba902b7-01", OUTSIDE + "-extra", "é"]
    with traced(collector):
        async with api(database) as http:
            for value in sent:
                response = await http.get("/api/v1/workflows", headers={"traceparent": value.encode("latin-1")})
                assert response.status_code == 200

    assert [span.parent_span_id for span in collector.named("GET")] == [b""] * len(sent)


def test_without_a_collector_the_opentelemetry_sdk_is_not_imported():
    code = (
        "import sys; from dagmaster.observe import traces; import dagmaster.worker.loop, dagmaster.api.app;"
        "traces.configure('x', None)\n"
        "with traces.span('a', b=1) as span: assert span.traceparent is None\n"
        "unwanted = ('opentelemetry.sdk', 'opentelemetry.exporter')  # FastAPI imports the API by itself\n"
        "assert not [name for name in sys.modules if name.startswith(unwanted)], 'imported'"
    )

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_secrets_in_attributes_are_removed(collector):
    secrets = {"api_key": CANARY, "url": f"https://user:{CANARY}@host/x"}
    with traced(collector), traces.span("named", **secrets, long="x" * 1000):
        pass

    assert not any(CANARY.encode() in body for body in collector.bodies)
    (span,) = collector.spans
    assert len(facts(span)["long"]) == 200


def test_log_lines_outside_a_span_have_no_ids(collector, capsys):
    log.configure("info")
    with traced(collector):
        with traces.span("inside"):
            log.get("test").info("one")
        log.get("test").info("two")

    inside, outside = [line for line in capsys.readouterr().err.splitlines() if "role=test" in line]
    assert "trace_id=" in inside
    assert "trace_id=" not in outside


async def test_spans_of_concurrent_tasks_do_not_mix(collector):
    async def nested(number: int) -> None:
        with traces.span(f"outer {number}"):
            await asyncio.sleep(0.001)
            with traces.span(f"inner {number}"):
                await asyncio.sleep(0.001)

    with traced(collector):
        await asyncio.gather(*(nested(number) for number in range(20)))

    for number in range(20):
        (outer,), (inner,) = collector.named(f"outer {number}"), collector.named(f"inner {number}")
        assert inner.parent_span_id == outer.span_id


@pytest.mark.parametrize("create", [create_maps, create_gateway])
async def test_requests_to_every_server_belong_to_the_trace_of_the_client(create, collector):
    transport = httpx2.ASGITransport(create(Settings(), "postgresql://nobody@127.0.0.1:1/none"))
    with traced(collector):
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            await http.get("/openapi.json", headers={"traceparent": OUTSIDE})
            await http.get("/livez", headers={"traceparent": OUTSIDE})

    (span,) = collector.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == tuple(OUTSIDE.split("-")[1:3])
    assert facts(span)["http.route"] == "/openapi.json"
