"""Compare the transports on one server in one run: PostgreSQL, and Service Bus with a simulated broker.

In every round, for each transport, an orchestrator and two workers do
  50 ms   a fan-out of tasks that take 50 ms, over 2 × 20 slots (--slots)
  no-op   a fan-out of no-op tasks
  chain   a chain of 20 steps
so that a ratio compares adjacent measurements. For the 50 ms tasks, CPU time is measured by process. The simulated
broker (tests/servicebus/broker.py) is a single Python process on the same machine: unlike Azure, it uses CPU time of
this machine, and has no network latency. The figures show what the transport costs the engine; they say nothing about
Azure. With fewer slots, all processes including the broker get the CPU time that they need.

    python bench/transports.py [--rounds 2] [--scale 1] [--slots 20] [--json FILE]
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ours
from server import Server, Spent, private_server

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.servicebus.broker import BrokerProcess

from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.workflows.load import read

SLOTS = 20
TASK_SECONDS = 0.05
_FAN_OF_SLEEPS = ours.fan("sleeps", ours.QUEUE).replace(
    'handler: noop, queue: dag-worker-tasks, params: {number: "{{ item }}"}',
    f"handler: sleep, queue: dag-worker-tasks, params: {{seconds: {TASK_SECONDS}}}",
)
Figures = dict[str, list[float]]


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


async def measure(
    server: Server, broker_pid: int, settings: dict[str, str], scale: float, slots: int
) -> tuple[dict[str, float], dict[str, float]]:
    """The figures, and the milliseconds of CPU time per task of 50 ms, by process."""
    slow, quick = int(4_000 * scale), int(5_000 * scale)
    with environment(WORKER_SLOTS=str(slots), **settings):
        async with ours.platform(server) as running:
            await running.run("fan", count=200)
            with server.metered(ours.DATABASE, {**running.pids, "stand-in": broker_pid}) as spent:
                seconds = await running.run("sleeps", count=slow)
            measured = {
                "50 ms tasks/s": slow / seconds,
                "no-op tasks/s": quick / await running.run("fan", count=quick),
                "chain ms/step": 1000 * statistics.median([await running.chain() for _ in range(3)]) / ours.CHAIN_STEPS,
            }
            await running.until("SELECT count(*) = 0 FROM dagapp.dag_outbox")
    return measured, cpu_of(spent, slow)


def cpu_of(spent: Spent, tasks: int) -> dict[str, float]:
    """Milliseconds for each task; all workers together."""
    seconds: Counter[str] = Counter({"PostgreSQL": spent.postgres_seconds})
    for name, each in spent.process_seconds.items():
        seconds[name.partition(" ")[0]] += each
    return {name: 1000 * total / tasks for name, total in seconds.items()}


async def compare(options: argparse.Namespace) -> dict[str, Any]:
    workflow = read(textwrap.dedent(_FAN_OF_SLEEPS), "bench")
    ours.WORKFLOWS = WorkflowLibrary({**ours.WORKFLOWS.workflows, workflow.workflow_id: workflow})
    figures: dict[str, Figures] = {"postgres": {}, "servicebus": {}}
    cpu: dict[str, Figures] = {"postgres": {}, "servicebus": {}}
    with private_server() as server, BrokerProcess([ours.QUEUE, "dag-jobs"]) as broker:
        ours.new_database(server)
        broker_settings = {"TRANSPORT": "servicebus", "SERVICE_BUS_CONNECTION_STRING": broker.connection_string}
        for number in range(options.rounds):
            order = [("postgres", {}), ("servicebus", broker_settings)]
            for name, settings in order if number % 2 == 0 else order[::-1]:
                assert broker.pid is not None
                measured, spent = await measure(server, broker.pid, settings, options.scale, options.slots)
                print(
                    f"  {name:10} " + "   ".join(f"{what} {value:8.1f}" for what, value in measured.items()), flush=True
                )
                print(
                    "             CPU ms/task  " + "   ".join(f"{role} {ms:.2f}" for role, ms in spent.items()),
                    flush=True,
                )
                for kept, values in ((figures[name], measured), (cpu[name], spent)):
                    for what, value in values.items():
                        kept.setdefault(what, []).append(value)
        history = await ours.verified(server)
    ratios = {
        what: [value / reference for value, reference in zip(values, figures["postgres"][what], strict=True)]
        for what, values in figures["servicebus"].items()
    }
    return {"figures": figures, "cpu ms per task": cpu, "servicebus over postgres": ratios, "history": history}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--slots", type=int, default=SLOTS, help="slots of each of the two workers")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, default durability")
    measured = asyncio.run(compare(options))
    print("servicebus over postgres")
    for what, values in measured["servicebus over postgres"].items():
        print(f"  {what:16} {statistics.median(values):5.2f}  ({min(values):.2f} to {max(values):.2f})")
    for name, by_process in measured["cpu ms per task"].items():
        medians = {role: statistics.median(values) for role, values in by_process.items()}
        print(f"CPU ms per task of 50 ms, {name}: {', '.join(f'{role} {ms:.2f}' for role, ms in medians.items())}")
    print(f"history: {measured['history']}")
    if options.json:
        options.json.write_text(json.dumps(measured, indent=2))
    return 1 if measured["history"]["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
