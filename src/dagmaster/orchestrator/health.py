"""The health of an orchestrator that serves no API:
whether its loop advances, and whether its heartbeat reaches the database.

The probes read it from another thread (`dagmaster.observe.probes`), so it only copies values.
With the API, the API reports it.
"""

import platform
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from dagmaster.observe.probes import Check, Metric, age_of, one
from dagmaster.orchestrator.loop import Orchestrator


class OrchestratorHealth:
    """The subject of an orchestrator's probes."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator

    def alive(self) -> list[Check]:
        silent = self._orchestrator.silent_seconds
        return [Check("jobs", silent < self._orchestrator.hopeless_seconds, f"the loop ran {silent:.1f} s ago")]

    def ready(self) -> list[Check]:
        orchestrator = self._orchestrator
        silent, age = orchestrator.silent_seconds, age_of(orchestrator.beaten_at)
        known = Check("heartbeat", False, "has not reached the database yet")
        if age is not None:
            is_recent = age < orchestrator.settings.orphan_threshold_sec
            known = Check("heartbeat", is_recent, f"reached the database {age:.1f} s ago")
        moves = Check("loop", silent < orchestrator.patience_seconds, f"got on {silent:.1f} s ago")
        stays = Check("claiming", not orchestrator.is_stopping, "stops" if orchestrator.is_stopping else "claims jobs")
        return [known, moves, stays]

    def about(self) -> dict[str, Any]:
        info = self._orchestrator.info()
        return {
            "owner_id": info.owner_id,
            "host": info.host,
            "pid": info.pid,
            "versions": {"dagmaster": info.software_version, "python": platform.python_version()},
            "last_heartbeat_seconds": age_of(self._orchestrator.beaten_at),
            "counters": info.stats,
        }

    def metrics(self) -> Iterable[Metric]:
        for name, value in asdict(self._orchestrator.counters).items():
            yield one(f"dagmaster_orchestrator_{name}_total", "counter", f"{name} since the start", value)
        jobs = self._orchestrator.info().stats["jobs"]
        yield one("dagmaster_orchestrator_jobs", "gauge", "Jobs that it owns now", jobs)
