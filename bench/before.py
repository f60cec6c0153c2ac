"""Where the time goes beside an earlier version: milliseconds of CPU for each task, step and job, as a table.

    bench/before.py 96fd35e        that commit's code and this tree's, in turn, each on a PostgreSQL of its own

The same bench drives both, so the earlier version must still have the interfaces that it uses. Figures are medians over
rounds; in brackets, in the column of ratios, the lowest and the highest.
"""

import argparse
import asyncio
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

HERE = Path(__file__).resolve().parent
SIDES = ("PostgreSQL", "orchestrator", "worker")
STATEMENTS_SHOWN = 5


def main() -> int:
    options = read_options()
    if options.profile:
        asyncio.run(profile(options.profile, options.scale))
        return 0
    with tempfile.TemporaryDirectory(prefix="before-bench-") as folder:
        trees = {"before": earlier(options.commit, Path(folder)), "now": HERE.parent}
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
        for number in range(options.rounds):
            for name, tree in trees.items():
                print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
                found[name].append(profiled(tree, Path(folder), options.scale))
    print("\n".join(table(found)))
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", help="the earlier version")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of all counts; less than 1 to try the bench itself")
    parser.add_argument("--profile", type=Path, help=argparse.SUPPRESS)  # one run of whatever code is on the path
    options = parser.parse_args()
    if not (options.commit or options.profile):
        parser.error("name the commit to compare with")
    return options


def earlier(commit: str, folder: Path) -> Path:
    packed = subprocess.run(["git", "-C", HERE.parent, "archive", commit, "src"], check=False, capture_output=True)
    if packed.returncode:
        raise SystemExit(f"bench: {commit} can't be had: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder / "tree", filter="data")
    return folder / "tree"


def profiled(tree: Path, folder: Path, scale: float) -> dict[str, Any]:
    result = folder / "profile.json"
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, __file__, "--profile", result, "--scale", str(scale)]
    subprocess.run(command, env=environment, check=True)
    found: dict[str, Any] = json.loads(result.read_text())
    result.unlink()
    return found


async def profile(result: Path, scale: float) -> None:
    import parts
    from server import private_server

    with private_server() as server:
        result.write_text(json.dumps(await parts.profile(server, scale)))


def table(found: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    yield "|  | before | now | now / before |"
    yield "|---|--:|--:|--:|"
    for what, facts in found["now"][0].items():
        if isinstance(facts, dict):
            yield f"| **{what}**, seconds | {row(found, what, lambda facts: facts['seconds'])}"
            for side in SIDES:
                yield f"| {side}, ms for each | {row(found, what, lambda facts, side=side: facts['cpu ms'][side])}"
            for name in dict.fromkeys([*names(found["before"][0][what]), *names(facts)]):
                yield f"| `{name}`, ms for each | {row(found, what, lambda facts, name=name: cost(facts, name))}"


def names(facts: dict[str, Any]) -> list[str]:
    """The statements that take most, each once."""
    return list(dict.fromkeys(top["name"] for top in facts["statements"]))[:STATEMENTS_SHOWN]


def cost(facts: dict[str, Any], name: str) -> float:
    return sum(top["ms"] for top in facts["statements"] if top["name"] == name)


def row(found: dict[str, list[dict[str, Any]]], what: str, value: Any) -> str:
    before, now = ([value(each[what]) for each in found[name]] for name in ("before", "now"))
    shown = [figure(values) for values in (before, now)]
    if "–" in shown:
        return f"{shown[0]} | {shown[1]} | – |"
    ratios = [n / b for b, n in zip(before, now, strict=True) if b]
    return f"{shown[0]} | {shown[1]} | {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) |"


def figure(values: list[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:.3g}" if middle else "–"


if __name__ == "__main__":
    sys.exit(main())
