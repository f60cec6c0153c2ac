"""How fast the engine is, compared with peers, with PostgreSQL's pgbench and with the minimal work of any queue, on one
server in one run.

Starts a private PostgreSQL with default durability. In every round each peer (two workers and a driver) and, right
after it, dagmaster (an orchestrator and two workers) do
  fan_out        prepare, a fan-out of N no-op tasks, a fan-in, results stored
  chain          a chain of 20 steps
  small_jobs     200 three-step jobs submitted at once
so that a ratio compares adjacent measurements. Then, for dagmaster alone:
  large          large_fan_out: 100,000 children
  orchestrators  20 jobs of 1,000 children, with one and with three orchestrators
  idle           nothing to do, before and after 10,000 jobs
  backlog        fan_out with 100,000 finished tasks in the table, and with 100,000 that no worker can run
  start          time from `dagmaster up` to the first accepted job, and time of imports
  profile        where the time goes: processes, statements
Prints figures, ratios with their spread and whether each target holds; verify-history checks the jobs of all parts
except `start` and `profile`. Absolute times depend on the machine and its load, so mainly ratios and costs per task are
judged; bench/judge.py has all targets.
"""

import argparse
import asyncio
import json
import os
import platform
import shlex
import signal
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import ours
import parts
from judge import Target, targets
from peer_processes import DURABLE, NAMES, make_environments, running_peer
from report import show
from server import Server, Spent, peak_megabytes, private_server

PARTS = ("compare", "large", "orchestrators", "idle", "backlog", "start", "profile")
CHAINS = 9  # in a row: one takes a fraction of a second, which is too short to measure
Figures = dict[str, list[float]]


class Contender(Protocol):
    """dagmaster or a peer: each call returns the seconds it took."""

    name: str
    database: str
    pids: dict[str, int]

    async def fan(self, count: int) -> float: ...

    async def chain(self) -> float: ...

    async def jobs(self, count: int) -> float: ...


async def measure_contender(server: Server, contender: Contender, scale: float) -> dict[str, float]:
    few, many, jobs = int(1_000 * scale), int(10_000 * scale), int(200 * scale)
    await contender.fan(200)  # warm-up: plans, caches, pages
    small = await contender.fan(few)
    with server.metered(contender.database, contender.pids) as spent:
        large = await contender.fan(many)
    chains = statistics.median([await contender.chain() for _ in range(CHAINS)])
    await contender.jobs(20)
    measured = {
        "fan_out tasks/s N=1,000": few / small,
        "fan_out tasks/s N=10,000": many / large,
        "chain ms/step": 1000 * chains / ours.CHAIN_STEPS,
        "small_jobs/s": jobs / await contender.jobs(jobs),
        "MB, all processes": sum(peak_megabytes(pid) for pid in contender.pids.values()),
        **per_task(spent, many),
    }
    print(
        f"  {contender.name:14} fan_out {measured['fan_out tasks/s N=1,000']:6.0f}"
        f" and {measured['fan_out tasks/s N=10,000']:6.0f} tasks/s"
        f"   chain {measured['chain ms/step']:6.2f} ms/step   small_jobs {measured['small_jobs/s']:5.0f} jobs/s",
        flush=True,
    )
    return measured


def per_task(spent: Spent, count: int) -> dict[str, float]:
    return {
        "statements/task": spent.statements / count,
        "commits/task": spent.commits / count,
        "WAL bytes/task": spent.wal_bytes / count,
        "PostgreSQL CPU ms/task": 1000 * spent.postgres_seconds / count,
        "Python CPU ms/task": 1000 * sum(spent.process_seconds.values()) / count,
    }


async def compare(server: Server, peers: list[str], rounds: int, scale: float) -> dict[str, Any]:
    """The figures of all systems, and the ratio of dagmaster to each peer from adjacent runs."""
    figures: dict[str, Figures] = {}
    ratios: dict[str, Figures] = {}
    references: Figures = {}
    ours.new_database(server)
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        add_value(references, "pgbench tps", server.pgbench(3))
        add_value(references, "claim + complete in batches of 50, tasks/s", server.floor(int(20_000 * scale), 50))
        add_value(references, "claim + complete one by one, tasks/s", server.floor(int(2_000 * scale), 1))
        for peer in peers or [None]:
            of_peer: dict[str, float] = {}
            if peer is not None:
                with running_peer(server, peer) as running:
                    of_peer = await measure_contender(server, running, scale)
            async with ours.platform(server) as running:
                of_dagmaster = await measure_contender(server, running, scale)
            server.settle(ours.DATABASE)
            for name, value in of_dagmaster.items():
                add_value(figures.setdefault("dagmaster", {}), name, value)
            for name, value in of_peer.items():
                add_value(figures.setdefault(str(peer), {}), name, value)
                add_value(ratios.setdefault(str(peer), {}), name, of_dagmaster[name] / value)
        for name in ("fan_out tasks/s N=10,000", "small_jobs/s"):
            last = figures["dagmaster"][name][-max(1, len(peers)) :]
            add_value(
                references, f"dagmaster {name} over pgbench", statistics.median(last) / references["pgbench tps"][-1]
            )
    return {"figures": figures, "ratios": ratios, "references": references, "history": await ours.verified(server)}


def add_value(figures: Figures, name: str, value: float) -> None:
    figures.setdefault(name, []).append(value)


async def measure(server: Server, options: argparse.Namespace, versions: dict[str, str]) -> dict[str, Any]:
    measured: dict[str, Any] = {**circumstances(options), "versions": versions}
    for part in selected_parts(options):
        print(f"\n{part} …", flush=True)
        match part:
            case "compare":
                measured[part] = await compare(server, list(versions), options.rounds, options.scale)
            case "large":
                measured[part] = await parts.large(server, options.scale)
            case "orchestrators":
                measured[part] = await parts.orchestrators(server, options.scale, options.rounds)
            case "idle":
                measured[part] = await parts.idle(server, options.scale, options.idle_seconds)
            case "backlog":
                measured[part] = await parts.backlog(server, options.scale, options.rounds)
            case "start":
                measured[part] = await parts.start_up(options.rounds + 1)
            case "profile":
                measured[part] = await parts.profile(server, options.scale)
            case "steady":
                measured[part] = await parts.steady(server, options.steady)
    return measured


def selected_parts(options: argparse.Namespace) -> Iterator[str]:
    yield from (part for part in PARTS if part in options.parts)
    if options.steady:
        yield "steady"


def circumstances(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "command": shlex.join(["bench/engine.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"{os.cpu_count()} cores, {memory_gigabytes():.0f} GB, {system()}",
        "python": platform.python_version(),
        "rounds": options.rounds,
        "scale": options.scale,
        "load before": os.getloadavg()[0],
    }


def memory_gigabytes() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peers", default="all", help=f"all, none, or some of {','.join(NAMES)}")
    parser.add_argument("--parts", default="all", help=f"all, or some of {','.join(PARTS)}")
    parser.add_argument("--steady", type=float, default=0, metavar="MINUTES", help="also measure a constant load")
    parser.add_argument("--idle-seconds", type=float, default=15)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for all counts; below 1 to test the benchmark")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    options = parser.parse_args()
    options.peers = parse_names(parser, options.peers, NAMES)
    options.parts = parse_names(parser, options.parts, PARTS)
    return options


def parse_names(parser: argparse.ArgumentParser, text: str, valid_names: tuple[str, ...]) -> tuple[str, ...]:
    if text in {"all", "none"}:
        return valid_names if text == "all" else ()
    names = tuple(text.split(","))
    if unknown := set(names) - set(valid_names):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(valid_names)}")
    return names


async def main() -> int:
    options = arguments()
    versions = make_environments(options.peers) if "compare" in options.parts else {}
    with private_server() as server:
        server_version = server.row("SHOW server_version").server_version
        measured = await measure(server, options, versions)
    measured["postgres"] = server_version
    judged = targets(measured, DURABLE)
    measured["targets"] = [{**asdict(target), "holds": target.holds} for target in judged]
    show(measured)
    if options.scale != 1:
        print(f"\nall counts times {options.scale}: this only tests the benchmark; the figures are not meaningful")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(measured, indent=1, ensure_ascii=False) + "\n")
    return verdict(judged)


def verdict(judged: list[Target]) -> int:
    return 0 if all(target.holds for target in judged) else 1


def end(_number: int, _frame: object) -> None:
    """As Ctrl-C does: all processes are stopped, and the server's data is removed."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    sys.exit(asyncio.run(main()))
