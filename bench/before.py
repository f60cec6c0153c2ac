"""Compare this tree with an earlier commit: rates, costs per task, and CPU per task, step and job, as tables.

    bench/before.py 96fd35e        that commit and this tree, in turn, each on its own private PostgreSQL

Each tree runs its own `bench/engine.py`, so modules may have moved since. Figures are matched by their position,
because workloads may have been renamed. The tables show medians over rounds and the ratio with its lowest and highest
value.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIDES = ("PostgreSQL", "orchestrator", "worker")
Runs = list[dict[str, Any]]


def main() -> int:
    options = read_options()
    before: Runs = []
    now: Runs = []
    with tempfile.TemporaryDirectory(prefix="before-bench-") as folder:
        trees = (("before", extract(options.commit, Path(folder)), before), ("now", ROOT, now))
        for number in range(options.rounds):
            for name, tree, runs in trees:
                print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
                runs.append(measure(tree, Path(folder), options.scale))
    print("\n".join([*table(before, now, "compare", figures), "", *table(before, now, "profile", cpu)]))
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the earlier version")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor for all counts; below 1 to test the benchmark itself"
    )
    return parser.parse_args()


def extract(commit: str, folder: Path) -> Path:
    command = ["git", "-C", ROOT, "archive", commit, "src", "bench", "requirements"]
    packed = subprocess.run(command, check=False, capture_output=True)
    if packed.returncode:
        raise SystemExit(f"bench: cannot extract {commit}: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder / "tree", filter="data")
    return folder / "tree"


def measure(tree: Path, folder: Path, scale: float) -> dict[str, Any]:
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    program = str(tree / "bench" / "engine.py")
    parts = ["--peers", "none", "--parts", "compare,profile", "--rounds", "1", "--scale", str(scale)]
    # The exit code says whether absolute targets hold; here only the ratio of the two trees counts.
    subprocess.run([sys.executable, program, *parts, "--json", result], env=environment, check=False, stdout=sys.stderr)
    if not result.exists():
        raise SystemExit(f"bench: {program} wrote no result; see its messages above")
    measured: dict[str, Any] = json.loads(result.read_text())
    return measured


def figures(measured: dict[str, Any]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in measured["figures"]["dagmaster"].items()}


def cpu(measured: dict[str, Any]) -> dict[str, float]:
    workloads = {name: facts for name, facts in measured.items() if isinstance(facts, dict)}
    return {
        f"{name}: {side}, ms per unit": facts["cpu ms"][side] for name, facts in workloads.items() for side in SIDES
    }


def table(before: Runs, now: Runs, part: str, read: Any) -> Iterator[str]:
    yield f"| {part} | before | now | now / before |"
    yield "|---|--:|--:|--:|"
    old, new = ([read(run[part]) for run in runs] for runs in (before, now))
    for position, name in enumerate(new[0]):
        values = [[list(run.values())[position] for run in runs] for runs in (old, new)]
        ratios = [after / earlier for earlier, after in zip(*values, strict=True) if earlier]
        shown = " | ".join(f"{statistics.median(column):.3g}" for column in values)
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})" if ratios else "–"
        yield f"| {name} | {shown} | {spread} |"


if __name__ == "__main__":
    sys.exit(main())
