"""The effects of handlers outside the engine, and the handlers that have them.

The effect ledger is a file outside the system that is only appended to: it may contain duplicates, and no line is ever
removed.

    E effect pid        an attempt was started: any number of starts is allowed, and reported
    F effect            it has finished, and its effect exists
    P effect            a later node was given this effect: the accepted result has published it

An effect is named JOB/NODE/ATTEMPT/RANDOM, so that two executions of one attempt differ too. Exactly one
effect of each task may be published, and it must have finished.
"""

import asyncio
import ctypes
import hashlib
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagmaster.errors import HandlerFailed
from dagmaster.handlers.context import Context, SyncContext
from dagmaster.handlers.registry import Registration

NAP_SECONDS = 0.1
BULK_BYTES = 300_000  # more than a row can hold
HUGE_BYTES = 101 * 1024 * 1024  # more than any output may have
SUCCEEDS_AFTER_RETRIES = 4

REGISTRATIONS = (
    Registration("chaos.work", "chaos.effects:work"),
    Registration("chaos.plain", "chaos.effects:plain", is_async=False),
    Registration("chaos.gather", "chaos.effects:gather"),
    Registration("chaos.bulk", "chaos.effects:bulk"),
    Registration("chaos.digest", "chaos.effects:digest"),
    Registration("chaos.full", "chaos.effects:full", is_async=False),
    Registration("chaos.long_once", "chaos.effects:long_once"),
    Registration("chaos.huge", "chaos.effects:huge"),
    Registration("chaos.hungry", "chaos.effects:hungry", is_async=False, memory_mb=300),
    Registration("chaos.kill_worker", "chaos.effects:kill_worker", is_async=False),
)

Task = tuple[str, str]  # job and node


# Writing


def note(file: str | Path, *words: object) -> None:
    """Append one line; a single write to a file opened for appending is atomic."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(descriptor)


def _begin(ctx: Any) -> str:
    """Record the execution and the effects that it was given; returns the name of its own effect."""
    effect = f"{ctx.job_id}/{ctx.node_id}/{ctx.attempt}/{os.urandom(4).hex()}"
    note(ctx.params["file"], "E", effect, os.getpid())
    for given in ctx.params.get("given", ()):
        note(ctx.params["file"], "P", given)
    return effect


def _finish(ctx: Any, effect: str, value: Any) -> dict[str, Any]:
    note(ctx.params["file"], "F", effect)
    return {"value": value, "effect": effect}


# Handlers


async def work(ctx: Context) -> dict[str, Any]:
    """Wait for `seconds`, fail according to `failure_rate` and `seed`, return `value`."""
    effect = _begin(ctx)
    end = time.monotonic() + ctx.params.get("seconds", 0)
    while (left := end - time.monotonic()) > 0:
        if ctx.cancelled or ctx.shutting_down:
            raise ctx.give_back()
        await asyncio.sleep(min(NAP_SECONDS, left))
    if _draws_failure(ctx):
        raise HandlerFailed(f"flaky by design (attempt {ctx.attempt})")
    return _finish(ctx, effect, ctx.params.get("value", 1))


def _draws_failure(ctx: Any) -> bool:
    rate: float = ctx.params.get("failure_rate", 0)
    if not rate or ctx.retry_count >= SUCCEEDS_AFTER_RETRIES:
        return False
    drawn = hashlib.sha256(f"{ctx.params['seed']}|{ctx.node_id}|{ctx.attempt}".encode()).digest()
    return int.from_bytes(drawn[:4], "big") / 2**32 < rate


def plain(ctx: SyncContext) -> dict[str, Any]:
    """Work in steps with a checkpoint after each, without checking for a stop in between, as in a library call."""
    effect = _begin(ctx)
    last = ctx.load_checkpoint()
    for step in range(last[1] + 1 if last else 1, ctx.params["steps"] + 1):
        time.sleep(ctx.params["seconds"])
        ctx.save_checkpoint(f"step_{step}", step)
    return _finish(ctx, effect, ctx.params["steps"])


async def gather(ctx: Context) -> dict[str, Any]:
    """Add up the children's values; each child's effect is published by its result."""
    effect = _begin(ctx)
    total = count = 0
    async for result in ctx.results():
        count += 1
        total += result.output["value"]
        note(ctx.params["file"], "P", result.output["effect"])
    return _finish(ctx, effect, [count, total])


async def bulk(ctx: Context) -> dict[str, Any]:
    """Returns more than a row can hold: the output is stored as a payload."""
    effect = _begin(ctx)
    return _finish(ctx, effect, None) | {"bulk": f"{ctx.params['seed']}-" * (BULK_BYTES // 8)}


async def digest(ctx: Context) -> dict[str, Any]:
    effect = _begin(ctx)
    text = ctx.params["bulk"]
    return _finish(ctx, effect, [len(text), text[: text.index("-")]])


def full(ctx: SyncContext) -> dict[str, Any]:
    """Fails with a full disk in its first attempt."""
    effect = _begin(ctx)
    if ctx.attempt == 1:
        with Path("/dev/full").open("wb") as disk:
            disk.write(b"x" * 100_000)
    return _finish(ctx, effect, ctx.params.get("value", 1))


async def long_once(ctx: Context) -> int:
    """Takes an hour in its first attempt, and no time in the next."""
    end = time.monotonic() + (3600 if ctx.attempt == 1 else 0)
    while time.monotonic() < end:
        if ctx.cancelled or ctx.shutting_down:
            raise ctx.give_back()
        await asyncio.sleep(NAP_SECONDS)
    return ctx.attempt


# Poison


async def huge(_ctx: Context) -> str:
    return "x" * HUGE_BYTES


def hungry(_ctx: SyncContext) -> int:
    """Allocates far more memory than it may use."""
    block = bytearray(600 * 1024 * 1024)
    block[::4096] = b"\x01" * len(block[::4096])
    return len(block)


def kill_worker(_ctx: SyncContext) -> None:
    """Kill the whole worker, as a handler does that fills the memory of the machine."""
    supervisor_stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(supervisor_stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    ctypes.CDLL(None).pause()


# Reading


@dataclass
class Effects:
    """The lines of the file."""

    executed: Counter[str] = field(default_factory=Counter)  # by effect
    finished: set[str] = field(default_factory=set)
    published: dict[Task, set[str]] = field(default_factory=lambda: defaultdict(set))
    pids: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "Effects":
        return cls.of(file.read_text().splitlines() if file.exists() else ())

    @classmethod
    def of(cls, lines: Iterable[str]) -> "Effects":
        effects = cls()
        for letter, effect, *values in (line.split() for line in lines):
            match letter:
                case "E":
                    effects.executed[effect] += 1
                    effects.pids[effect] = int(values[0])
                case "F":
                    effects.finished.add(effect)
                case "P":
                    effects.published[task_of(effect)].add(effect)
        return effects

    def running(self) -> Iterator[tuple[str, int]]:
        """Executions that have not finished, with their processes; the latest first."""
        for effect, pid in reversed(self.pids.items()):
            if effect not in self.finished:
                yield effect, pid

    def done_again(self) -> int:
        """How many times a task that had finished was finished again."""
        return len(self.finished) - len({task_of(effect) for effect in self.finished})

    def duplicates(self, accepted: Iterable[tuple[Task, str]]) -> dict[Task, set[str]]:
        """Tasks with several published effects, by accepted results and by the effects that later nodes were given."""
        seen = {task: set(effects) for task, effects in self.published.items()}
        for task, effect in accepted:
            seen.setdefault(task, set()).add(effect)
        return {task: effects for task, effects in seen.items() if len(effects) > 1}

    def published_unfinished(self, accepted: Iterable[tuple[Task, str]]) -> set[str]:
        """Effects that were published, but have not finished."""
        named = {effect for effects in self.published.values() for effect in effects}
        return (named | {effect for _, effect in accepted}) - self.finished


def task_of(effect: str) -> Task:
    job, node, _, _ = effect.split("/")
    return job, node


def attempt_of(effect: str) -> int:
    return int(effect.split("/")[2])
