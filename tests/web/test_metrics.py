"""Metrics of the API and of the map server, in the format of Prometheus."""

import asyncio
import re
from random import Random
from typing import Any

import pytest
from prometheus_client import Histogram

from dagmaster.api.metrics import _database_metrics
from dagmaster.database.reads.queues import DatabaseFacts, TableRows
from dagmaster.observe.metrics import REQUEST_SECONDS, Durations
from dagmaster.web.metrics import RequestMetrics
from tests.api.serving import api, ok
from tests.engine.harness import engine

LINE = re.compile(r'^(?P<name>[a-z_]+)(?:\{(?P<labels>[a-z_]+="[^"]*"(?:,[a-z_]+="[^"]*")*)\})? (?P<value>[-+.e\d]+)$')
PARTS = ("_bucket", "_count", "_sum")  # of a histogram


def parsed(text: str) -> dict[str, float]:
    """Samples by name and labels. Every line must be a sample or a comment, and every sample must be declared."""
    samples: dict[str, float] = {}
    declared: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            declared.add(line.split()[2])
        if not line.startswith("#"):
            match = LINE.match(line)
            assert match, line
            assert {match["name"], *(match["name"].removesuffix(part) for part in PARTS)} & declared
            samples[line.rpartition(" ")[0]] = float(match["value"])
    return samples


async def test_the_api_counts_requests_jobs_and_queues(database):
    async with engine(database) as running, api(database, running) as http:
        accepted = await ok(http.post("/api/v1/jobs", json={"workflow_id": "hello_world"}), 202)
        await running.wait(accepted["job_id"], until=("completed",))
        before = await http.get("/metrics")
        for _ in range(3):
            await http.get("/api/v1/jobs/nonsense")
        after = parsed((await http.get("/metrics")).text)

    assert before.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert before.headers["cache-control"] == "no-store"
    first = parsed(before.text)
    assert first['dagmaster_http_requests_total{method="POST",status="202"}'] == 1
    assert 'dagmaster_http_requests_total{method="GET",status="422"}' not in first
    assert after['dagmaster_http_requests_total{method="GET",status="422"}'] == 3
    assert after["dagmaster_http_requests_running"] == 1
    assert after["dagmaster_http_request_seconds_total"] > first["dagmaster_http_request_seconds_total"]
    assert after["dagmaster_database_up"] == 1
    assert after['dagmaster_queue_workers{queue="dag-worker-tasks"}'] == 1
    assert any(name.startswith("dagmaster_orchestrator_") and name.endswith("_total") for name in after)


async def test_without_a_database_there_are_only_metrics_of_the_process():
    async with api("postgresql://nobody@127.0.0.1:1/none") as http:
        response = await http.get("/metrics")

    samples = parsed(response.text)
    assert response.status_code == 200
    assert samples["dagmaster_database_up"] == 0
    assert not any(name.startswith("dagmaster_queue") for name in samples)


async def test_requests_with_a_foreign_host_name_get_no_metrics(database):
    async with api(database) as http:
        response = await http.get("/metrics", headers={"Host": "rebound.example"})

    assert response.status_code == 403


def test_unknown_http_methods_do_not_become_labels():
    metrics = RequestMetrics("api")
    for number in range(1000):
        metrics.begin()
        metrics.end(f"METHOD{number}", 405, 0.001)

    (requests, *_) = metrics.metrics()
    assert [(sample.labels, sample.value) for sample in requests.samples] == [
        ({"method": "other", "status": "405"}, 1000)
    ]


def test_large_counts_are_exact():
    """Prometheus computes rates from differences, which are lost if a counter is rounded."""
    metrics: Any = RequestMetrics("api")
    metrics._responses["GET", 200] = 123_456_789

    samples = parsed(metrics.response().body.decode())
    assert samples['dagmaster_http_requests_total{method="GET",status="200"}'] == 123_456_789


async def test_durations_are_labelled_with_the_templates_of_routes(database):
    async with api(database) as http:
        for number in range(5):
            await http.get(f"/api/v1/jobs/00000000-0000-7000-8000-00000000000{number}")
            await http.get(f"/nowhere/{number}")
        await http.get("/ui/jobs/1")
        samples = parsed((await http.get("/metrics")).text)

    name = "dagmaster_http_request_duration_seconds_count"
    assert samples[f'{name}{{method="GET",route="/api/v1/jobs/{{job_id}}",status="4xx"}}'] == 5
    assert samples[f'{name}{{method="GET",route="none",status="4xx"}}'] == 5
    assert not any("00000000" in sample or "/nowhere/" in sample for sample in samples)
    assert any('route="/ui/{path:path}"' in sample for sample in samples)


async def test_queues_and_database_are_read_once_for_scrapes_within_a_few_seconds(database):
    async with api(database) as http:
        reads = []
        services = http._transport.app.state.services
        original = services.reads.queues

        async def counted(*arguments, **options):
            reads.append(1)
            return await original(*arguments, **options)

        services.reads.queues = counted
        responses = await asyncio.gather(*(http.get("/metrics") for _ in range(8)))

    assert len(reads) == 1
    for response in responses:
        samples = parsed(response.text)
        assert samples["dagmaster_database_size_bytes"] > 1_000_000
        assert samples["dagmaster_database_connections"] >= 1
        assert samples["dagmaster_callbacks_pending"] == 0
        assert 'dagmaster_database_dead_rows{table="dag_tasks"}' in samples
        assert 'dagmaster_queue_oldest_seconds{queue="container-tasks"}' in samples


def test_two_servers_in_one_process_have_separate_metrics():
    first, second = RequestMetrics("api"), RequestMetrics("gateway")
    first.begin()
    first.end("GET", 200, 0.1, "/livez")

    (requests, *_) = second.metrics()
    assert requests.samples == []


def test_durations_give_the_same_histogram_as_the_prometheus_library():
    random = Random(3)
    ours = Durations("seconds", "Seconds", ("route",), REQUEST_SECONDS)
    theirs = Histogram("seconds", "Seconds", ("route",), buckets=REQUEST_SECONDS, registry=None)
    for seconds in [*REQUEST_SECONDS, 0.0, 11.0, *(random.expovariate(2) for _ in range(200))]:
        route = random.choice(("/a", "/b"))
        ours.observe((route,), seconds)
        theirs.labels(route).observe(seconds)

    (mine,) = ours.collect()
    (expected,) = theirs.collect()

    samples = {(each.name, *sorted(each.labels.items())): each.value for each in mine.samples}
    assert len(samples) == 2 * (len(REQUEST_SECONDS) + 3)
    assert samples == {
        (each.name, *sorted(each.labels.items())): pytest.approx(each.value)
        for each in expected.samples
        if not each.name.endswith("_created")
    }


def test_live_and_dead_rows_are_two_metrics_of_each_table():
    rows = {"dag_tasks": TableRows(live=3, dead=1), "dag_jobs": TableRows(live=2, dead=0)}
    facts = DatabaseFacts(1, 1, 1, 0.0, rows, 0, 0.0, 0, 0)

    families = {family.name: family for family in _database_metrics(facts)}

    samples = {
        name: [(sample.labels["table"], sample.value) for sample in families[f"dagmaster_database_{name}"].samples]
        for name in ("live_rows", "dead_rows")
    }
    assert samples == {
        "live_rows": [("dag_jobs", 2), ("dag_tasks", 3)],
        "dead_rows": [("dag_jobs", 0), ("dag_tasks", 1)],
    }
