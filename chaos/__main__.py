"""`make chaos`: inject faults into real processes for some minutes, then check the result.
Exit code 1 if a check fails."""

import argparse
import asyncio
import json
import os
import platform
import random
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from chaos import recovery
from chaos.figures import report_text
from chaos.nemesis import BROKER_FAULT_COUNTS, FAULT_COUNTS
from chaos.run import Options, run_chaos
from dagmaster.observe import log


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="seed of faults and load; by default a random one")
    parser.add_argument("--seconds", type=float, default=Options.seconds, help="how long faults are injected")
    parser.add_argument("--faults", type=int, help="number of faults")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=[*FAULT_COUNTS, *BROKER_FAULT_COUNTS],
        help="only this kind of fault; may be repeated",
    )
    parser.add_argument("--orchestrators", type=int, default=Options.orchestrators)
    parser.add_argument("--workers", type=int, default=Options.workers)
    parser.add_argument("--rate", type=float, default=Options.tasks_per_second, help="tasks per second")
    parser.add_argument(
        "--transport",
        choices=["postgres", "servicebus"],
        default=Options.transport,
        help="servicebus: a simulated broker that loses, duplicates, delays and reorders messages, and is killed",
    )
    parser.add_argument("--no-rasters", action="store_true", help="submit no raster jobs")
    parser.add_argument(
        "--recovery", action="store_true", help="only measure recovery times, with default and with fast settings"
    )
    parser.add_argument("--times", type=int, default=3, help="with --recovery: number of measurements of each")
    parser.add_argument("--logs", type=Path, help="keep the logs of the roles and the server in this folder")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args(arguments)


def options_of(arguments: argparse.Namespace) -> Options:
    """The required numbers of faults and attempts are for the default duration; for others they are scaled."""
    share = arguments.seconds / Options.seconds
    faults = arguments.faults or max(1, round(Options.faults * share))
    is_usual = share >= 1 and not arguments.only and arguments.faults is None
    return Options(
        seed=random.randrange(10**6) if arguments.seed is None else arguments.seed,
        seconds=arguments.seconds,
        faults=faults,
        wanted_faults=round(Options.wanted_faults * share) if is_usual else 0,
        wanted_attempts=round(Options.wanted_attempts * share) if is_usual else 0,
        only=tuple(arguments.only),
        orchestrators=arguments.orchestrators,
        workers=arguments.workers,
        tasks_per_second=arguments.rate,
        has_rasters=not arguments.no_rasters,
        transport=arguments.transport,
        logs=arguments.logs,
    )


def run(work: Coroutine[Any, Any, int]) -> int:
    """Run until it is done, or stopped by SIGINT or SIGTERM. No process or file is left in either case."""

    async def stoppable() -> int:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    try:
        return asyncio.run(stoppable())
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped; no process or file is left")
        return 130


async def measure_recoveries(arguments: argparse.Namespace) -> int:
    measured = await recovery.measure(arguments.times)
    print(recovery.report_text(measured))
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(one) for one in measured], indent=2))
    return 1 if any(one.problems() for one in measured) else 0


async def main(arguments: argparse.Namespace) -> int:
    log.configure("error")  # lost connections of this process are expected
    print(f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, default durability")
    if arguments.recovery:
        return await measure_recoveries(arguments)
    outcome = await run_chaos(options_of(arguments))
    print(report_text(outcome))
    if arguments.json:
        arguments.json.write_text(json.dumps(outcome.as_json(), indent=2))
    return 1 if outcome.problems() else 0


if __name__ == "__main__":
    chosen = parsed(sys.argv[1:])
    sys.exit(run(main(chosen)))
