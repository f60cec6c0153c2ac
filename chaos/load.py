"""Jobs of every kind in a steady stream. Each submission is repeated under its key until it is acknowledged, then
recorded outside the system.

The expected end of a job, and its result if it has one, are known when it is submitted.
"""

import asyncio
import json
import random
import shutil
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from chaos import effects
from chaos.effects import BULK_BYTES
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.notify.postgres import PostgresNotifier
from dagmaster.errors import Conflict, Unavailable
from dagmaster.jobs.model import Submission
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.cancel import cancel
from dagmaster.operations.submit import submit_once
from dagmaster.workflows.load import read, shipped

FILE = '{file: "{{ inputs.file }}"'
WORKFLOWS = (
    """
    workflow_id: chaos_fan
    inputs: {file: {type: string}, items: {type: array}, seconds: {type: number, default: 0.01}}
    nodes:
      start: {type: start, next: split}
      split:
        type: fan_out
        source: "{{ inputs.items }}"
        task:
          handler: chaos.work
          params: {file: "{{ inputs.file }}", value: "{{ item }}", seconds: "{{ inputs.seconds }}"}
        next: join
      join: {type: fan_in, handler: chaos.gather, params: {file: "{{ inputs.file }}"}, next: end}
      end: {type: end}
    outputs: {value: "{{ nodes.join.output.value }}"}
    """,
    """
    workflow_id: chaos_flaky
    inputs: {file: {type: string}, items: {type: array}, seed: {type: integer}}
    nodes:
      start: {type: start, next: split}
      split:
        type: fan_out
        source: "{{ inputs.items }}"
        task:
          handler: chaos.work
          params: {file: "{{ inputs.file }}", value: "{{ item }}", failure_rate: 0.3, seed: "{{ inputs.seed }}"}
          retry: {max_attempts: 5, backoff: fixed, initial_delay_seconds: 0.1, max_delay_seconds: 0.5}
        next: join
      join: {type: fan_in, handler: chaos.gather, params: {file: "{{ inputs.file }}"}, next: end}
      end: {type: end}
    outputs: {value: "{{ nodes.join.output.value }}"}
    """,
    """
    workflow_id: chaos_route
    inputs: {file: {type: string}, value: {type: integer}}
    nodes:
      start: {type: start, next: measure}
      measure: {handler: chaos.work, params: {file: "{{ inputs.file }}", value: "{{ inputs.value }}"}, next: is_large}
      is_large:
        type: conditional
        condition: "{{ nodes.measure.output.value }} > 50"
        on_true: large
        on_false: small
      large:
        handler: chaos.work
        params: {file: "{{ inputs.file }}", value: large, given: ["{{ nodes.measure.output.effect }}"]}
      small:
        handler: chaos.work
        params: {file: "{{ inputs.file }}", value: small, given: ["{{ nodes.measure.output.effect }}"]}
      joined:
        handler: chaos.work
        params: {file: "{{ inputs.file }}"}
        depends_on: {any_of: [large, small]}
        next: end
      end: {type: end}
    outputs: {value: "{{ nodes.large.output.value | default(nodes.small.output.value) }}"}
    """,
    """
    workflow_id: chaos_plain
    inputs: {file: {type: string}, items: {type: array}, seconds: {type: number, default: 0.3}}
    nodes:
      start: {type: start, next: split}
      split:
        type: fan_out
        source: "{{ inputs.items }}"
        task:
          handler: chaos.plain
          params: {file: "{{ inputs.file }}", steps: "{{ item }}", seconds: "{{ inputs.seconds }}"}
        next: join
      join: {type: fan_in, handler: chaos.gather, params: {file: "{{ inputs.file }}"}, next: end}
      end: {type: end}
    outputs: {value: "{{ nodes.join.output.value }}"}
    """,
    """
    workflow_id: chaos_bulk
    inputs: {file: {type: string}, seed: {type: integer}}
    nodes:
      start: {type: start, next: make}
      make: {handler: chaos.bulk, params: {file: "{{ inputs.file }}", seed: "{{ inputs.seed }}"}, next: use}
      use:
        handler: chaos.digest
        params:
          file: "{{ inputs.file }}"
          bulk: "{{ nodes.make.output.bulk }}"
          given: ["{{ nodes.make.output.effect }}"]
        next: end
      end: {type: end}
    outputs: {value: "{{ nodes.use.output.value }}"}
    """,
    """
    workflow_id: chaos_full
    inputs: {file: {type: string}}
    nodes:
      start: {type: start, next: write}
      write: {handler: chaos.full, params: {file: "{{ inputs.file }}", value: 7}, next: end}
      end: {type: end}
    outputs: {value: "{{ nodes.write.output.value }}"}
    """,
)


def chain(length: int) -> str:
    """Steps one after the other; each gets the value and the effect of the step before."""
    inputs = "inputs: {file: {type: string}, seconds: {type: number, default: 0}}"
    lines = [f"workflow_id: chaos_chain{length}", inputs, "nodes:"]
    lines.append("  start: {type: start, next: s1}")
    for number in range(1, length + 1):
        before = f"nodes.s{number - 1}.output"
        given = f', given: ["{{{{ {before}.effect }}}}"], value: "{{{{ {before}.value + 1 }}}}"' if number > 1 else ""
        params = f'{FILE}, seconds: "{{{{ inputs.seconds }}}}"{given}}}'
        following = f"s{number + 1}" if number < length else "end"
        lines.append(f"  s{number}: {{handler: chaos.work, params: {params}, next: {following}}}")
    lines.append("  end: {type: end}")
    lines.append(f'outputs: {{value: "{{{{ nodes.s{length}.output.value }}}}"}}')
    return "\n".join(lines)


def poison(name: str, handler: str, params: str = "{}", more: str = "") -> str:
    return f"""
    workflow_id: chaos_poison_{name}
    nodes:
      start: {{type: start, next: work}}
      work:
        handler: {handler}
        params: {params}
        retry: {{max_attempts: 1, backoff: fixed, initial_delay_seconds: 0.1}}{more}
        next: end
      end: {{type: end}}
    """


POISONS = {
    "crash": poison("crash", "crash", "{exit_code: 11}"),
    "hang": poison("hang", "hang", more="\n        timeout_seconds: 2"),
    "memory": poison("memory", "chaos.hungry"),
    "huge": poison("huge", "chaos.huge"),
    "kill_worker": poison("kill_worker", "chaos.kill_worker"),
}
RASTER = "process_large_raster"
CHAIN_STEPS = 6


def catalog() -> WorkflowLibrary:
    texts = [*WORKFLOWS, chain(CHAIN_STEPS), *POISONS.values()]
    ours = [read(textwrap.dedent(text), "chaos") for text in texts]
    raster = [read(path.read_text(), path.name) for path in shipped() if path.stem == RASTER]
    return WorkflowLibrary({workflow.workflow_id: workflow for workflow in (*ours, *raster)})


@dataclass(frozen=True)
class ExpectedJob:
    """A submission, and how its job must end."""

    kind: str
    workflow_id: str
    inputs: dict[str, Any]
    ends: tuple[str, ...] = ("completed",)
    result: Any = None
    cancel_after: float | None = None
    tasks: int = 1


@dataclass(frozen=True)
class Acknowledged:
    request: ExpectedJob
    job_id: UUID
    key: str


class JobRequests:
    """Selects at random, by a seed, what is submitted next."""

    def __init__(
        self, seed: int, file: Path, *, width: int = 60, step_seconds: Sequence[float] = (0, 0.2, 1, 3)
    ) -> None:
        self._random = random.Random(f"load {seed}")
        self._file = str(file)
        self._width = width
        self._step_seconds = step_seconds
        self._drawing: list[tuple[int, Callable[[], ExpectedJob]]] = [
            (5, self.fan),
            (8, self.chain),
            (3, self.flaky),
            (3, self.route),
            (3, self.plain),
            (2, self.bulk),
            (1, self.full),
            (2, self.cancelled),
        ]

    def draw(self) -> ExpectedJob:
        (chosen,) = self._random.choices(self._drawing, [weight for weight, _ in self._drawing])
        return chosen[1]()

    def _inputs(self, **more: Any) -> dict[str, Any]:
        return {"file": self._file, **more}

    def fan(self) -> ExpectedJob:
        count = self._random.randint(self._width // 2, self._width * 3 // 2)
        items = [self._random.randint(0, 99) for _ in range(count)]
        seconds = self._random.choice([0, 0.01, 0.05, 0.2])
        inputs = self._inputs(items=items, seconds=seconds)
        return ExpectedJob("fan-out", "chaos_fan", inputs, result=[count, sum(items)], tasks=count + 1)

    def chain(self) -> ExpectedJob:
        """Some take longer, so that orchestrators always have jobs that they can lose."""
        inputs = self._inputs(seconds=self._random.choice(self._step_seconds))
        return ExpectedJob("chain", f"chaos_chain{CHAIN_STEPS}", inputs, result=CHAIN_STEPS, tasks=CHAIN_STEPS)

    def flaky(self) -> ExpectedJob:
        count = self._random.randint(self._width // 4, self._width)
        inputs = self._inputs(items=[1] * count, seed=self._random.randint(0, 10**6))
        return ExpectedJob("retries", "chaos_flaky", inputs, result=[count, count], tasks=count + 1)

    def route(self) -> ExpectedJob:
        value = self._random.randint(0, 100)
        result = "large" if value > 50 else "small"
        return ExpectedJob("conditional", "chaos_route", self._inputs(value=value), result=result, tasks=3)

    def plain(self) -> ExpectedJob:
        items = [self._random.randint(1, 3) for _ in range(self._random.randint(1, 3))]
        inputs = self._inputs(items=items, seconds=self._random.choice([0.05, 0.3]))
        return ExpectedJob("processes", "chaos_plain", inputs, result=[len(items), sum(items)], tasks=len(items) + 1)

    def bulk(self) -> ExpectedJob:
        seed = self._random.randint(10**6, 10**7 - 1)
        result = [BULK_BYTES // 8 * 8, str(seed)]
        return ExpectedJob("payload", "chaos_bulk", self._inputs(seed=seed), result=result, tasks=2)

    def full(self) -> ExpectedJob:
        return ExpectedJob("disk full", "chaos_full", self._inputs(), result=7)

    def cancelled(self) -> ExpectedJob:
        inputs = self._inputs(items=[1] * self._width, seconds=1.0)
        after = self._random.uniform(0.05, 1.5)
        ends = ("cancelled", "completed")
        return ExpectedJob("cancelled", "chaos_fan", inputs, ends, cancel_after=after, tasks=self._width)


@dataclass
class Load:
    """Submits jobs at a rate of `tasks_per_second`, and waits while more than `max_open_tasks` tasks have not ended."""

    dsn: str  # of the submitter's link
    storage: Path
    notes: Path
    requests: JobRequests
    tasks_per_second: float
    max_open_tasks: int
    has_rasters: bool = True
    raster_every: float = 40.0
    acknowledged: dict[UUID, Acknowledged] = field(default_factory=dict)
    open_tasks: Callable[[], int] = lambda: 0
    counts: Counter[str] = field(default_factory=Counter)
    _number: int = 0

    def __post_init__(self) -> None:
        self.library = catalog()
        self._notifier = PostgresNotifier(self.dsn)
        self._ledger = PostgresLedger(self.dsn, "chaos", self._notifier)
        self._cancelling: set[asyncio.Task[None]] = set()

    async def stream(self) -> None:
        self._notifier.start()
        raster_at = time.monotonic() + 5
        due = time.monotonic()
        try:
            while True:
                if self.has_rasters and time.monotonic() > raster_at:
                    await self.submit(self.raster())
                    raster_at = time.monotonic() + self.raster_every
                if self.open_tasks() > self.max_open_tasks:
                    await asyncio.sleep(0.2)
                    due = time.monotonic()
                    continue
                request = self.requests.draw()
                await self.submit(request)
                due = max(due + request.tasks / self.tasks_per_second, time.monotonic() - 1)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        finally:
            await self._close()

    async def _close(self) -> None:
        for task in self._cancelling:
            task.cancel()
        await asyncio.gather(*self._cancelling, return_exceptions=True)
        await self._notifier.close()
        await self._ledger.close()

    async def submit(self, request: ExpectedJob) -> UUID:
        """Repeat the submission under the same key until it is acknowledged; then record and count it."""
        self._number += 1
        key = f"chaos-{self._number}"
        submission = Submission(workflow_id=request.workflow_id, input_params=request.inputs, idempotency_key=key)
        while True:
            try:
                submitted = await submit_once(self._ledger, self.library, submission)
                break
            except Unavailable:
                self.counts["submissions repeated"] += 1
                await asyncio.sleep(0.2)
        effects.note(self.notes, key, submitted.job_id, request.kind, json.dumps(request.result).replace(" ", ""))
        self.acknowledged[submitted.job_id] = Acknowledged(request, submitted.job_id, key)
        self.counts[request.kind] += 1
        if request.cancel_after is not None:
            cancelling = asyncio.create_task(self._cancel(submitted.job_id, request.cancel_after))
            self._cancelling.add(cancelling)
            cancelling.add_done_callback(self._cancelling.discard)
        return submitted.job_id

    async def _cancel(self, job_id: UUID, seconds: float) -> None:
        await asyncio.sleep(seconds)
        with suppress(Unavailable, Conflict):
            await cancel(self._ledger, job_id)

    def poison(self, name: str) -> ExpectedJob:
        return ExpectedJob(f"poison {name}", f"chaos_poison_{name}", {}, ("failed",))

    def raster(self) -> ExpectedJob:
        """A small scene, which becomes a few tiles with their mosaic and STAC items."""
        name = f"scene-{self._number}"
        source = self.storage / "bronze" / "bronze" / "scene.tif"
        if not source.exists():
            _draw_scene(source)
        shutil.copy(source, source.with_name(f"{name}.tif"))
        inputs = {"blob_name": f"{name}.tif", "tile_size": 512}
        return ExpectedJob("raster", RASTER, inputs, tasks=10)


def _draw_scene(path: Path, width: int = 700, height: int = 600) -> None:
    import numpy as np
    import rasterio
    from affine import Affine

    rows, columns = np.mgrid[:height, :width]
    bands = [100 + 90 * np.sin(rows / (50 + 9 * band)) * np.cos(columns / 70) for band in range(3)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with rasterio.open(
        path,
        "w",
        driver="GTiff",
        width=width,
        height=height,
        count=3,
        dtype="uint8",
        crs="EPSG:32633",
        transform=Affine(10, 0, 500_000, 0, -10, 5_300_000),
    ) as file:
        file.write(np.stack(bands).astype("uint8"))
