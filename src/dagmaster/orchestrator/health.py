"""The health of an orchestrator that serves no API: whether its loop advances, and whether its heartbeat reaches the
database.

The probes read it from another thread (`dagmaster.observe.probes`), so it only copies values.
The API reports the health of an orchestrator that serves one.
"""

import platform
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from prometheus_client.core import Metric

from dagmaster.observe.metrics import counter, counters, gauge
from dagmaster.observe.probes import Check, age_of
from dagmaster.orchestrator.loop import Orchestrator
from dagmaster.orchestrator.relay import Relay

MEANINGS = {
    "cycles": "Iterations of the loop",
    "claimed": "Jobs claimed",
    "reclaimed": "Jobs claimed that another orchestrator, or an earlier run, had owned before",
    "advanced": "Jobs advanced, one for each step of each job",
    "fenced": "Jobs lost to another orchestrator",
    "finished": "Jobs that ended",
    "dispatched": "Tasks written to queues",
    "results": "Reports of tasks processed",
    "errors": "Iterations and jobs that failed and are tried again",
    "messages": "Submissions taken from the queue of jobs",
}


class OrchestratorHealth:
    """The subject of an orchestrator's probes."""

    role = "orchestrator"

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator

    def alive(self) -> list[Check]:
        silent = self._orchestrator.silent_seconds
        return [Check("jobs", silent < self._orchestrator.restart_after_seconds, f"the loop ran {silent:.1f} s ago")]

    def ready(self) -> list[Check]:
        orchestrator = self._orchestrator
        silent, age = orchestrator.silent_seconds, age_of(orchestrator.heartbeat_at)
        heartbeat = Check("heartbeat", False, "has not reached the database yet")
        if age is not None:
            is_recent = age < orchestrator.settings.orphan_threshold_sec
            heartbeat = Check("heartbeat", is_recent, f"reached the database {age:.1f} s ago")
        loop = Check("loop", silent < orchestrator.stuck_after_seconds, f"advanced {silent:.1f} s ago")
        claiming = Check(
            "claiming", not orchestrator.is_stopping, "is stopping" if orchestrator.is_stopping else "claims jobs"
        )
        return [heartbeat, loop, claiming]

    def details(self) -> dict[str, Any]:
        info = self._orchestrator.info()
        return {
            "owner_id": info.owner_id,
            "host": info.host,
            "pid": info.pid,
            "versions": {"dagmaster": info.software_version, "python": platform.python_version()},
            "last_heartbeat_seconds": age_of(self._orchestrator.heartbeat_at),
            "counters": info.stats,
        }

    def metrics(self) -> Iterable[Metric]:
        orchestrator = self._orchestrator
        for name, value in asdict(orchestrator.counters).items():
            yield counter(f"dagmaster_orchestrator_{name}_total", MEANINGS[name], value)
        yield gauge("dagmaster_orchestrator_jobs", "Jobs that the orchestrator owns", orchestrator.owned_count)
        yield gauge("dagmaster_orchestrator_silent_seconds", "Seconds since the loop last ran", self._silent_seconds)
        ages = (
            ("uptime", orchestrator.started_at, "Seconds since the loop started"),
            ("heartbeat_age", orchestrator.heartbeat_at, "Seconds since a heartbeat last reached the database"),
            ("scan_age", orchestrator.scanned_at, "Seconds since the last search for jobs of dead orchestrators"),
        )
        for name, moment, meaning in ages:
            if (age := age_of(moment)) is not None:
                yield gauge(f"dagmaster_orchestrator_{name}_seconds", meaning, age)
        if orchestrator.callbacks is not None:
            outcomes = asdict(orchestrator.callbacks.counters)
            samples = {(name,): float(value) for name, value in outcomes.items()}
            meaning = "Attempts to deliver callbacks, by outcome"
            yield counters("dagmaster_callback_attempts_total", meaning, ("outcome",), samples)
        if orchestrator.relay is not None:
            yield from _relay_metrics(orchestrator.relay)

    @property
    def _silent_seconds(self) -> float:
        return self._orchestrator.silent_seconds


def _relay_metrics(relay: Relay) -> Iterable[Metric]:
    by_outcome = asdict(relay.counters)
    errors = by_outcome.pop("errors")
    samples = {(name,): float(value) for name, value in by_outcome.items()}
    yield counters("dagmaster_relay_messages_total", "Messages of the outbox, by outcome", ("outcome",), samples)
    yield counter(
        "dagmaster_relay_errors_total", "Iterations of the relay that could not read or write the outbox", errors
    )
