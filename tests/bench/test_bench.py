"""Parts of the benchmark that do not measure: the choice of peers, the targets, and the report."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench"
PEERS = ("absurd", "dbos", "pgqueuer", "procrastinate")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return bench_module(monkeypatch, "report")


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return bench_module(monkeypatch, "judge")


def bench_module(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__(name)


def measured(fan_out: float, findings: int = 0) -> dict:
    ratios = {peer: {name: [2.0] for name in ("chain ms/step", "small_jobs/s")} for peer in PEERS}
    figures = {
        key: [4.0, 5.0, 9.0]
        for key in ("fan_out tasks/s N=1,000", "fan_out tasks/s N=10,000", "chain ms/step", "small_jobs/s")
    }
    costs = ("MB, all processes", "statements/task", "commits/task", "WAL bytes/task", "PostgreSQL CPU ms/task")
    figures |= {key: [0.01] for key in (*costs, "Python CPU ms/task")}
    for peer in PEERS:
        ratios[peer] |= {
            "fan_out tasks/s N=10,000": [fan_out, fan_out + 2, fan_out + 1],
            "fan_out tasks/s N=1,000": [1.0],
        }
    ratios["absurd"]["fan_out tasks/s N=10,000"] = [7.0, 9.0, 7.5]
    return {
        "command": "bench/engine.py",
        "date": "2026-11-16",
        "hardware": "2 cores",
        "python": "3.11",
        "postgres": "15",
        "rounds": 3,
        "scale": 1.0,
        "versions": dict.fromkeys(PEERS, "1.0"),
        "compare": {
            "figures": {"dagmaster": figures},
            "ratios": ratios,
            "references": {"pgbench tps": [2000.0]},
            "history": {"jobs": 3, "events": 12, "findings": findings},
        },
    }


def judged(judge: ModuleType, run: dict) -> dict:
    return {target.what: target for target in judge.targets(run, ("absurd", "dbos"))}


def test_the_target_is_relative_to_the_best_durable_engine(judge: ModuleType) -> None:
    target = judged(judge, measured(fan_out=30.0))["fan_out N=10,000 over the best durable engine"]
    assert target.value == 7.5  # the median ratio to the fastest of the peers
    assert not target.holds


def test_lower_and_upper_limits_are_distinguished(judge: ModuleType) -> None:
    targets = judged(judge, measured(fan_out=0.5))
    assert targets["fan_out N=10,000 over pgqueuer"].holds  # 1.5
    assert not targets["fan_out N=10,000 over pgqueuer"].is_moonshot
    assert not targets["chain over procrastinate"].holds
    assert targets["fan_out N=10,000, statements/task"].is_moonshot


def test_a_finding_of_verify_history_misses_a_target(judge: ModuleType) -> None:
    assert judged(judge, measured(fan_out=30.0))["findings of verify-history"].holds
    assert not judged(judge, measured(fan_out=30.0, findings=1))["findings of verify-history"].holds
    assert not judged(
        judge, {**measured(fan_out=30.0), "backlog": None, "large": None, "idle": None, "x": {"findings": [1]}}
    )["findings of verify-history"].holds


def test_the_figures_on_the_page_are_replaced_and_other_text_is_kept(report: ModuleType) -> None:
    run = {**measured(fan_out=30.0), "targets": []}
    text = f"before\n{report.BEGIN}\nold figures\n{report.END}\nafter\n"
    renewed = report.update_page(text, run)
    assert renewed.startswith(f"before\n{report.BEGIN}\n`bench/engine.py`, 2026-11-16, 3 rounds")
    assert renewed.endswith(f"{report.END}\nafter\n")
    assert "old figures" not in renewed
    assert "| fan_out tasks/s N=10,000 | 5.00 (4.00–9.00) |" in renewed
    assert report.update_page(renewed, run) == renewed


def test_the_page_has_markers_for_the_figures(report: ModuleType) -> None:
    assert re.search(f"{report.BEGIN}.+{report.END}", report.PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("change", [{"scale": 0.1}, {"versions": {"dbos": "1"}}, {}])
def test_only_a_complete_run_is_written_to_the_page(report: ModuleType, change: dict) -> None:
    assert not report.is_whole({**measured(fan_out=30.0), **change})  # other parts are missing
    whole = {**measured(fan_out=30.0), **{key: {} for key in report.WHOLE}, **change}
    assert report.is_whole(whole) is (not change)


@pytest.mark.parametrize(("value", "text"), [(0.0401, "0.0401"), (5.0, "5.00"), (12345.6, "12,346"), (0, "0")])
def test_numbers_are_shown_with_three_significant_digits(report: ModuleType, value: float, text: str) -> None:
    assert report.number(value) == text


@pytest.mark.parametrize("peer", PEERS)
def test_each_peer_has_a_driver_and_versions_with_hashes(peer: str) -> None:
    assert (BENCH / f"peers/{peer}_peer.py").exists()
    lock = (BENCH / f"peers/{peer}.txt").read_text()
    pinned = re.findall(r"^\S+==\S+.*\\\n    --hash=sha256:", lock, re.MULTILINE)
    assert len(pinned) == len(re.findall(r"^[a-z]", lock, re.MULTILINE)) > 0
    assert "://" not in lock  # the package index is a setting of the machine


def test_the_help_of_the_benchmark_lists_the_peers() -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "engine.py", "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert ",".join(PEERS) in done.stdout
    unknown = subprocess.run(
        [sys.executable, BENCH / "engine.py", "--peers", "nobody"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert unknown.returncode == 2
    assert "nobody" in unknown.stderr
