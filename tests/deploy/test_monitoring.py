"""The dashboard and the alert rules use only metrics and labels that the roles expose."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dagmaster.database.callbacks.store import PostgresCallbacks
from dagmaster.database.ledger.outbox import PostgresOutbox
from dagmaster.gateway.app import create_app as create_gateway
from dagmaster.observe.metrics import exposition, new_registry
from dagmaster.orchestrator.callbacks import CallbackSender
from dagmaster.orchestrator.health import OrchestratorHealth
from dagmaster.orchestrator.relay import Relay
from dagmaster.serving.app import create_app as create_maps
from dagmaster.settings import Settings
from dagmaster.worker.health import WorkerHealth
from tests.api.serving import api, ok
from tests.engine.harness import engine

pytestmark = pytest.mark.requirement("M1")

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((DEPLOY / "grafana/dagmaster.json").read_text())
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=str(Path(sys.executable).parent))
# Prometheus adds these to every sample.
OF_TARGETS = {"job", "instance"}
NAME = re.compile(r"\b(?:dagmaster|process)_[a-z_]+")
SELECTOR = re.compile(r"(?P<name>(?:dagmaster|process)_[a-z_]+)(?:\{(?P<matchers>[^}]*)\})?")
GROUPING = re.compile(r"\bby \((?P<labels>[^)]*)\)")

Exposed = dict[str, set[str]]  # the labels of each sample, by its name


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def samples_of(text: str) -> Exposed:
    exposed: Exposed = defaultdict(set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            exposed[sample.name] |= set(sample.labels)
    return exposed


@pytest.fixture(scope="module")
def exposed(shared_database: str) -> dict[str, Exposed]:
    """The metrics that each role exposes, after it has done some work."""
    return asyncio.run(_exposed(shared_database))


async def _exposed(dsn: str) -> dict[str, Exposed]:
    async with engine(dsn) as running, api(dsn, running) as http:
        await running.run("hello_world")
        await ok(http.get("/livez"))  # so that there are metrics of a request
        running.orchestrators[0].callbacks = CallbackSender(running.settings, PostgresCallbacks(dsn))
        running.orchestrators[0].relay = Relay(PostgresOutbox(dsn, "relay"), None)
        settings = running.settings.model_copy(update={"worker_queue_concurrency": ("container-tasks=2",)})
        texts = {
            "orchestrator": (await http.get("/metrics")).text,
            "worker": _read("worker", WorkerHealth(running.workers[0], settings)),
            "orchestrator without API": _read("orchestrator", OrchestratorHealth(running.orchestrators[0])),
            "serving": await _scraped(create_maps(Settings(), dsn)),
            "gateway": await _scraped(create_gateway(Settings(), dsn)),
        }
    # The probes of a worker add one metric, which tests/worker/test_health.py checks.
    texts["worker"] += "# TYPE dagmaster_loop_still_seconds gauge\ndagmaster_loop_still_seconds 0\n"
    return {role: samples_of(text) for role, text in texts.items()}


def _read(role: str, subject: Any) -> str:
    return exposition(new_registry(role, subject.metrics)).decode()


async def _scraped(app: Any) -> str:
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        await http.get("/livez")
        response = await http.get("/metrics")
    assert response.status_code == 200, response.text
    return response.text


def test_every_metric_of_dashboard_and_rules_is_exposed(exposed):
    names = set().union(*exposed.values())

    unknown = {(where, name) for where, text in expressions() for name in NAME.findall(text) if name not in names}
    assert unknown == set()


def test_every_label_of_dashboard_and_rules_exists(exposed):
    labels: Exposed = defaultdict(set)
    for samples in exposed.values():
        for name, labels_of_sample in samples.items():
            labels[name] |= labels_of_sample

    wrong = set()
    for where, text in expressions():
        used = set(NAME.findall(text))
        for selector in SELECTOR.finditer(text):
            for matcher in filter(None, (selector["matchers"] or "").split(",")):
                label = re.split("[!=~]", matcher.strip())[0]
                wrong |= {(where, label)} if label not in labels[selector["name"]] | OF_TARGETS else set()
        for grouping in GROUPING.finditer(text):
            for label in re.split(r",\s*", grouping["labels"]):
                wrong |= {(where, label)} if not any(label in labels[name] | OF_TARGETS for name in used) else set()
    assert wrong == set()


@pytest.mark.parametrize("role", ["orchestrator", "worker", "orchestrator without API", "serving", "gateway"])
def test_every_role_exposes_its_version_and_uptime(exposed, role):
    samples = exposed[role]

    assert samples["dagmaster_build_info"] == {"role", "version"}
    assert samples.keys() & {"dagmaster_uptime_seconds", "dagmaster_orchestrator_uptime_seconds"}
    assert "process_resident_memory_bytes" in samples


def test_names_follow_the_rules_of_prometheus(exposed):
    own = {name for samples in exposed.values() for name in samples if name.startswith("dagmaster_")}

    assert [name for name in own if not re.fullmatch("[a-z][a-z0-9_]*", name)] == []
    assert not [name for name in own if re.search("_(ms|milliseconds|mb|kb|minutes|hours)(_|$)", name)]


def test_the_metrics_of_the_requirement_exist(exposed):
    orchestrator, worker = exposed["orchestrator"], exposed["worker"]
    counted = ["cycles", "claimed", "reclaimed", "fenced", "dispatched", "results", "errors"]

    assert {f"dagmaster_orchestrator_{name}_total" for name in counted} <= orchestrator.keys()
    assert {f"dagmaster_orchestrator_{name}_seconds" for name in ("uptime", "heartbeat_age", "scan_age")} <= (
        orchestrator.keys()
    )
    assert {f"dagmaster_queue_{name}" for name in ("depth", "oldest_seconds", "finished_per_minute")} <= (
        orchestrator.keys()
    )
    assert orchestrator["dagmaster_outbox_messages"] == {"queue"}
    assert orchestrator["dagmaster_relay_messages_total"] == {"outcome"}
    assert {"dagmaster_database_dead_rows", "dagmaster_database_oldest_transaction_seconds"} <= orchestrator.keys()
    assert {f"dagmaster_worker_{name}_total" for name in ("claimed", "tasks", "lost_tasks", "memory_kills")} <= (
        worker.keys()
    )
    assert worker["dagmaster_worker_task_duration_seconds_bucket"] == {"handler", "outcome", "le"}
    assert worker["dagmaster_worker_queue_slots"] == {"queue"}
    for role in ("orchestrator", "serving", "gateway"):
        assert exposed[role]["dagmaster_http_request_duration_seconds_bucket"] == {"method", "route", "status", "le"}


def test_every_alert_has_a_severity_and_is_explained_in_the_guide():
    guide = (DEPLOY.parent / "docs/guides/monitor.md").read_text()

    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert f"`{rule['alert']}`" in guide, rule["alert"]
        assert rule["annotations"]["summary"]


def test_every_alert_is_tested_with_samples_that_fire_and_that_do_not():
    cases = [
        (case["alertname"], bool(case["exp_alerts"]))
        for group in yaml.safe_load((DEPLOY / "prometheus/rules_test.yaml").read_text())["tests"]
        for case in group["alert_rule_test"]
    ]

    assert {name for name, fires in cases if fires} == {rule["alert"] for rule in RULES}
    assert {name for name, fires in cases if not fires} == {rule["alert"] for rule in RULES}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian's package prometheus) is not installed")
def test_promtool_accepts_the_rules_and_their_tests():
    for arguments in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run(
            [str(PROMTOOL), *arguments], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
