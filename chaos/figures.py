"""The numbers of a run, and whether they are good: no violations were found, and the faults had an effect."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank, which is one of the values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True)
class Recovery:
    """Recovery times of one kind of fault. `unseen` counts the faults whose recovery was not observed in time."""

    kind: str
    count: int
    p50: float | None
    p99: float | None
    unseen: int


def recoveries(faults: Iterable[tuple[str, float | None]]) -> list[Recovery]:
    by_kind: dict[str, list[float | None]] = defaultdict(list)
    for kind, seconds in faults:
        by_kind[kind].append(seconds)
    recoveries = []
    for kind, times in sorted(by_kind.items()):
        known = [seconds for seconds in times if seconds is not None]
        p50, p99 = (percentile(known, 0.5), percentile(known, 0.99)) if known else (None, None)
        recoveries.append(Recovery(kind, len(times), p50, p99, len(times) - len(known)))
    return recoveries


@dataclass
class ChaosOutcome:
    seed: int
    seconds: float = 0.0
    quiet_seconds: float | None = None  # from the last fault to the end of the last job
    recoveries: list[Recovery] = field(default_factory=list)
    faults: int = 0
    log: list[tuple[str, str, float, float | None]] = field(default_factory=list)  # kind, victim, when, recovery
    jobs: Counter[str] = field(default_factory=Counter)  # by kind
    ends: Counter[str] = field(default_factory=Counter)  # by state
    attempts: int = 0
    executions: int = 0
    done_again: int = 0
    fenced: int = 0
    late_reports: int = 0
    resets_at_commit: int = 0
    events: int = 0
    wanted_faults: int = 0
    wanted_attempts: int = 0
    zeros: dict[str, list[Any]] = field(default_factory=dict)  # violations by kind; each list must be empty

    def problems(self) -> list[str]:
        """Why the run has failed; empty if it has not."""
        problems = [f"{name}: {len(what)}" for name, what in self.zeros.items() if what]
        if not self.fenced and not self.late_reports:
            problems.append("no orchestrator was fenced and no report was late: the faults had no effect")
        if self.faults < self.wanted_faults:
            problems.append(f"{self.faults} faults, {self.wanted_faults} are required")
        if self.attempts < self.wanted_attempts:
            problems.append(f"{self.attempts} task attempts, {self.wanted_attempts} are required")
        return problems

    def as_json(self) -> dict[str, Any]:
        facts = {name: value for name, value in vars(self).items() if name not in ("zeros", "recoveries")}
        return {
            **facts,
            "recoveries": [vars(recovery) for recovery in self.recoveries],
            "zeros": {name: len(what) for name, what in self.zeros.items()},
            "findings": {name: [str(thing) for thing in what[:50]] for name, what in self.zeros.items() if what},
            "problems": self.problems(),
        }


def report_text(outcome: ChaosOutcome) -> str:
    lines = [f"\n{'fault':24}{'times':>7}{'recovery p50':>15}{'p99':>9}{'unseen':>9}"]
    lines += [
        f"{recovery.kind:24}{recovery.count:7}{_seconds(recovery.p50):>15}{_seconds(recovery.p99):>9}"
        f"{recovery.unseen or '':>9}"
        for recovery in outcome.recoveries
    ]
    lines.append(f"{'all':24}{outcome.faults:7}")
    lines.append(f"\njobs by kind           {_counts(outcome.jobs)}")
    lines.append(f"jobs by end            {_counts(outcome.ends)}")
    lines.append(f"task attempts          {outcome.attempts:,}")
    again = (
        f"{outcome.done_again:,} of them repeated finished work "
        f"({outcome.done_again / max(1, outcome.faults):.2f} per fault)"
    )
    lines.append(f"executions             {outcome.executions:,}; {again}")
    lines.append(f"commits not confirmed  {outcome.resets_at_commit}")
    lines.append(
        f"fenced attempts        {outcome.fenced} writes of former owners, {outcome.late_reports} late reports"
    )
    lines.append(f"events verified        {outcome.events:,}")
    quiet = "never" if outcome.quiet_seconds is None else f"{outcome.quiet_seconds:.1f} s after the last fault"
    lines.append(f"all jobs ended         {quiet}\n")
    lines += [f"{name:32}{len(what):5}" for name, what in outcome.zeros.items()]
    for name, what in outcome.zeros.items():
        lines += [f"  {name}: {thing}" for thing in what[:10]]
    problems = outcome.problems()
    verdict = "; ".join(problems) if problems else "no violations"
    lines.append(f"\n{'BAD' if problems else 'good'}: {verdict} (seed {outcome.seed}, {outcome.seconds:.0f} s)")
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
