"""Example handlers, which tests and demonstrations use too."""

import asyncio
import ctypes
import hashlib
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dagmaster.errors import DagmasterError, HandlerFailed, Unavailable, UnfitData
from dagmaster.handlers.context import Context, SyncContext

CHECK_SECONDS = 0.1
SUCCEEDS_AFTER_RETRIES = 4


class ExampleResult(BaseModel):
    model_config = ConfigDict(frozen=True)


class EchoResult(ExampleResult):
    echoed_params: Any


async def echo(ctx: Context) -> EchoResult:
    """Return the params as `echoed_params`."""
    return EchoResult(echoed_params=ctx.params)


async def noop(_ctx: Context) -> None:
    """Do nothing."""


class HelloParams(BaseModel):
    name: str = "World"


class HelloResult(ExampleResult):
    message: str


async def hello_world(_ctx: Context, params: HelloParams) -> HelloResult:
    """Return a greeting as `message`."""
    return HelloResult(message=f"Hello, {params.name}!")


class SleepParams(BaseModel):
    seconds: float = Field(1.0, ge=0)


class SleepResult(ExampleResult):
    slept_seconds: float


async def sleep(ctx: Context, params: SleepParams) -> SleepResult:
    """Sleep in short steps, and stop early on a cancel or shutdown."""
    loop = asyncio.get_running_loop()
    end = loop.time() + params.seconds
    while (remaining := end - loop.time()) > 0:
        if ctx.cancelled or ctx.shutting_down:
            raise ctx.give_back()
        ctx.progress(1 - remaining / params.seconds)
        await asyncio.sleep(min(CHECK_SECONDS, remaining))
    return SleepResult(slept_seconds=params.seconds)


def sleep_blocking(_ctx: SyncContext, params: SleepParams) -> SleepResult:
    """Sleep as a library call does: without reacting to a cancel."""
    time.sleep(params.seconds)
    return SleepResult(slept_seconds=params.seconds)


def hang(_ctx: SyncContext) -> None:
    """Call a C function that never returns, with the GIL held and SIGTERM ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    libc = ctypes.PyDLL(None)
    while True:
        libc.pause()


class FailParams(BaseModel):
    message: str = "failed as requested"
    blame: Literal["data", "environment", "handler"] = "handler"


_FAILURES: dict[str, type[DagmasterError]] = {"data": UnfitData, "environment": Unavailable, "handler": HandlerFailed}


async def fail(_ctx: Context, params: FailParams) -> None:
    """Fail, blaming the data (never retried), the environment or the handler."""
    raise _FAILURES[params.blame](params.message)


class FlakyParams(BaseModel):
    model_config = ConfigDict(extra="allow")

    failure_rate: float = Field(0.2, ge=0, le=1)
    seed: int | str | None = None


class FlakyEchoResult(EchoResult):
    attempt: int


async def flaky_echo(ctx: Context, params: FlakyParams) -> FlakyEchoResult:
    """Fail at random. With a seed the same attempts fail in every run, and the fifth attempt succeeds."""
    if _draws_failure(ctx, params):
        raise HandlerFailed(f"flaky by design (attempt {ctx.attempt})", code="handler.flaky")
    return FlakyEchoResult(echoed_params=params.model_dump(exclude_none=True), attempt=ctx.attempt)


def _draws_failure(ctx: Context, params: FlakyParams) -> bool:
    if params.seed is None:
        return random.random() < params.failure_rate  # noqa: S311 - not a secret
    if ctx.retry_count >= SUCCEEDS_AFTER_RETRIES:
        return False
    digest = hashlib.sha256(f"{params.seed}|{ctx.node_id}|{ctx.attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < params.failure_rate


class PhasesParams(BaseModel):
    phases: int = Field(3, ge=1, le=1000)
    seconds_per_phase: float = Field(0.1, ge=0)


class PhasesResult(ExampleResult):
    """`phases_run` are those of this attempt; `resumed_after` is the checkpoint that it continued from."""

    phases_run: list[str]
    resumed_after: str | None
    digest: str


def multi_phase(ctx: SyncContext, params: PhasesParams) -> PhasesResult:
    """Work in phases, each with a checkpoint and a file. A later attempt continues after the last phase whose file is
    unchanged.

    `digest` covers all phases, whichever attempts ran them."""
    names = [f"phase_{number}" for number in range(1, params.phases + 1)]
    last = ctx.load_checkpoint(lambda name, _data: name in {*names, _FINISHED})
    if last and last[0] == _FINISHED:
        return PhasesResult(phases_run=[], resumed_after=_FINISHED, digest=last[1])
    folder = _folder_of(ctx)
    done = names.index(last[0]) + 1 if last else 0
    digest = (folder / last[0]).read_text() if last else ""
    for number, name in enumerate(names[done:], start=done + 1):
        if ctx.cancelled or ctx.shutting_down:
            raise ctx.give_back()
        time.sleep(params.seconds_per_phase)
        digest = hashlib.sha256(f"{digest}{name}".encode()).hexdigest()
        (folder / name).write_text(digest)
        ctx.save_checkpoint(name, {"phase": number}, artifact=folder / name)
        ctx.progress(number / params.phases, name, phases_done=number)
    # Before the files are deleted: without them the checkpoints of the phases are no longer valid.
    ctx.save_checkpoint(_FINISHED, digest)
    shutil.rmtree(folder)
    return PhasesResult(phases_run=names[done:], resumed_after=last[0] if last else None, digest=digest)


_FINISHED = "finished"


def _folder_of(ctx: SyncContext) -> Path:
    """A folder that all attempts of a node on this machine share."""
    parent = Path(tempfile.gettempdir()) / f"dagmaster-phases-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    if parent.is_symlink() or parent.stat().st_uid != os.getuid():
        raise Unavailable(f"{parent} belongs to another user", code="examples.no-folder")
    folder = parent / f"{ctx.job_id}-{ctx.node_id}"
    folder.mkdir(exist_ok=True)
    return folder


class SizeParams(BaseModel):
    size_mb: float = Field(ge=0)
    threshold_mb: float = Field(100.0, ge=0)


class SizeResult(ExampleResult):
    size_mb: float
    is_large: bool
    category: Literal["large", "small"]


async def size_check(_ctx: Context, params: SizeParams) -> SizeResult:
    """Compare a size with a threshold, for a conditional node."""
    is_large = params.size_mb > params.threshold_mb
    return SizeResult(size_mb=params.size_mb, is_large=is_large, category="large" if is_large else "small")


class ChunkParams(BaseModel):
    index: int = 0
    value: float | None = None
    items: list[float] | None = None


class ChunkResult(ExampleResult):
    index: int
    value: int | float


class TotalResult(ExampleResult):
    count: int
    total: int | float


async def chunk_processor(_ctx: Context, params: ChunkParams) -> ChunkResult | TotalResult:
    """Double one value, or add up a batch of values."""
    if params.items is not None:
        return TotalResult(count=len(params.items), total=_plain(sum(params.items)))
    if params.value is None:
        raise UnfitData("chunk_processor needs `value` or `items`", code="params.invalid")
    return ChunkResult(index=params.index, value=_plain(params.value * 2))


def _plain(number: float) -> float:
    """A whole number as an integer, so that JSON shows it without a decimal point."""
    return int(number) if float(number).is_integer() else number


class ListParams(BaseModel):
    count: int = Field(ge=0, le=1_000_000)
    start: int = 0


class ListResult(ExampleResult):
    items: list[int]
    count: int


async def make_list(_ctx: Context, params: ListParams) -> ListResult:
    """Return consecutive integers as `items` for a fan_out."""
    return ListResult(items=list(range(params.start, params.start + params.count)), count=params.count)


async def collect_results(ctx: Context) -> TotalResult:
    """Read the results of a fan_out: how many children completed, and the sum of their values."""
    count, total = 0, 0.0
    async for result in ctx.results():
        if result.status not in ("completed", "succeeded"):
            continue
        count += 1
        total += _value_of(result.output)
    return TotalResult(count=count, total=_plain(total))


def _value_of(output: Any) -> float:
    value = output.get("value", output.get("total")) if isinstance(output, dict) else output
    return value if isinstance(value, int | float) else 0.0


class CrashParams(BaseModel):
    exit_code: int = 13


def crash(_ctx: SyncContext, params: CrashParams) -> None:
    """End the process at once, as a segmentation fault in a library does."""
    os._exit(params.exit_code)


class AllocateParams(BaseModel):
    megabytes: int = Field(ge=0)


class AllocateResult(ExampleResult):
    megabytes: int


def allocate(_ctx: SyncContext, params: AllocateParams) -> AllocateResult:
    """Allocate memory and write to every page of it."""
    block = bytearray(params.megabytes * 1024 * 1024)
    block[::4096] = b"\x01" * len(block[::4096])
    return AllocateResult(megabytes=len(block) // (1024 * 1024))
