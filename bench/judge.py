"""The targets of a run: ratios measured in it, costs per task, memory, the load of an idle platform, and two promised
values: the milliseconds of a step and the rate of small jobs."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    what: str
    value: float
    limit: float
    at_least: bool
    moonshot: float | None = None

    @property
    def holds(self) -> bool:
        return self._reaches(self.limit)

    @property
    def is_moonshot(self) -> bool:
        return self.moonshot is not None and self._reaches(self.moonshot)

    def _reaches(self, limit: float) -> bool:
        return self.value >= limit if self.at_least else self.value <= limit


def targets(measured: dict[str, Any], durable: Sequence[str]) -> list[Target]:
    """The targets of the parts that this run has measured."""
    return [
        *(_promised(measured["compare"]) if "compare" in measured else ()),
        *(_compared_with_peers(measured["compare"], durable) if "compare" in measured else ()),
        *(_per_task(measured["compare"]["figures"]["dagmaster"]) if "compare" in measured else ()),
        *(_alone(measured)),
        Target("findings of verify-history", sum(_findings(measured)), 0, at_least=False),
    ]


def _promised(compare: dict[str, Any]) -> Iterator[Target]:
    figures, references = compare["figures"]["dagmaster"], compare.get("references", {})
    if over := references.get("dagmaster fan_out tasks/s N=10,000 over pgbench"):
        yield Target("fan_out N=10,000 tasks/s over pgbench tps", median(over), 1.0, at_least=True)
    small, large = median(figures["fan_out tasks/s N=1,000"]), median(figures["fan_out tasks/s N=10,000"])
    yield Target("fan_out cost per task, N=10,000 over N=1,000", small / large, 1.3, at_least=False)
    yield Target("chain ms per step", median(figures["chain ms/step"]), 10.0, at_least=False)
    yield Target("small_jobs/s", median(figures["small_jobs/s"]), 200.0, at_least=True)


def _compared_with_peers(compare: dict[str, Any], durable: Sequence[str]) -> Iterator[Target]:
    ratios, fan_out = compare["ratios"], "fan_out tasks/s N=10,000"
    if "pgqueuer" in ratios:
        yield Target(
            "fan_out N=10,000 over pgqueuer", median(ratios["pgqueuer"][fan_out]), 1.0, at_least=True, moonshot=2.0
        )
    if durable_ratios := [median(ratios[name][fan_out]) for name in durable if name in ratios]:
        yield Target(
            "fan_out N=10,000 over the best durable engine", min(durable_ratios), 8.0, at_least=True, moonshot=20.0
        )
    if "procrastinate" in ratios:
        yield Target("chain over procrastinate", median(ratios["procrastinate"]["chain ms/step"]), 1.3, at_least=False)
    if "pgqueuer" in ratios:
        chain, small_jobs = median(ratios["pgqueuer"]["chain ms/step"]), median(ratios["pgqueuer"]["small_jobs/s"])
        yield Target("small_jobs over pgqueuer", small_jobs, 1.0, at_least=True, moonshot=4.0)
        if "procrastinate" not in ratios:
            return
        yield Target("chain over pgqueuer (stretch goal)", chain, float("inf"), at_least=False, moonshot=1.0)


def _per_task(figures: dict[str, list[float]]) -> Iterator[Target]:
    for name, limit in (
        ("statements/task", 0.15),
        ("commits/task", 0.05),
        ("WAL bytes/task", 6_000),
        ("PostgreSQL CPU ms/task", 0.3),
        ("Python CPU ms/task", 0.15),
    ):
        yield Target(f"fan_out N=10,000, {name}", median(figures[name]), limit, at_least=False, moonshot=limit / 2)


def _alone(measured: dict[str, Any]) -> Iterator[Target]:
    if large := measured.get("large"):
        cost = median(large["large_fan_out cost per task over that at 1,000"])
        yield Target("large_fan_out cost per task, N=100,000 over N=1,000", cost, 1.3, at_least=False, moonshot=1.0)
        for role in ("orchestrator", "worker"):
            yield Target(
                f"large_fan_out {role} MB", max(large[f"large_fan_out {role} MB"]), 120, at_least=False, moonshot=80
            )
    if orchestrators := measured.get("orchestrators"):
        yield Target(
            "orchestrators, three over one", median(orchestrators["orchestrators, three over one"]), 1.0, at_least=True
        )
    if idle := measured.get("idle"):
        for when in ("empty", "after 10,000 jobs"):
            busy = (
                idle[f"idle {when}, % of a core, our processes"][0] + idle[f"idle {when}, % of a core, PostgreSQL"][0]
            )
            yield Target(f"idle {when}, % of a core", busy, 2.0, at_least=False, moonshot=0.5)
            yield Target(f"idle {when}, queries/s", idle[f"idle {when}, queries/s"][0], 5.0, at_least=False)
    if backlog := measured.get("backlog"):
        for name, values in backlog.items():
            if name.endswith(", over empty tables"):
                yield Target(name, median(values), 0.8, at_least=True)
    if profile := measured.get("profile"):
        yield Target("raster libraries in the orchestrator", len(profile["orchestrator imports"]), 0, at_least=False)
    if steady := measured.get("steady"):
        yield Target(
            "steady load, last third over first", steady["steady, last third over first"][0], 0.9, at_least=True
        )


def _findings(measured: dict[str, Any]) -> Iterator[float]:
    for part in measured.values():
        if isinstance(part, dict):
            yield from part.get("findings", ())
            yield part.get("history", {}).get("findings", 0)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
