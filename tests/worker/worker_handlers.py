"""Handlers that misbehave in various ways."""

import asyncio
import collections
import ctypes
import errno
import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dagmaster.errors import UnfitData


def pid(ctx: Any) -> dict[str, int]:
    return {"pid": os.getpid(), "parent": os.getppid(), "group": os.getpgid(0)}


class SpawnParams(BaseModel):
    note: str


def spawn(ctx: Any, params: SpawnParams) -> None:
    """Start a program, record the process ids, and hang."""
    program = subprocess.Popen(["sleep", "1000"])
    Path(params.note).write_text(f"{os.getpid()} {program.pid}")
    time.sleep(1000)


def daemonic(ctx: Any, params: SpawnParams) -> None:
    """Fork a child that keeps the channel open, and abort."""
    child = os.fork()
    if child == 0:
        time.sleep(1000)
    Path(params.note).write_text(f"{os.getpid()} {child}")
    os.abort()


def print_and_log(ctx: Any) -> dict[str, str]:
    print("a line on standard output")
    sys.stdout.write("\x00\x00\x00\x05hello")
    os.write(1, b"raw bytes\n")
    ctx.logger.info("read %s bands", 3, path="https://host/x.tif?sig=abc123&se=1")
    ctx.logger.bind(tile=7).warning("odd", value=object)
    return {"fine": "yes"}


def leak(ctx: Any) -> None:
    raise ValueError("can't open https://account.blob.core/x.tif?sig=abc123&x=1 \x00")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def fails_without_message(ctx: Any) -> None:
    raise Unprintable


def sys_exit_plain(ctx: Any) -> None:
    sys.exit(3)


def segfault(ctx: Any) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def daemonize(ctx: Any) -> None:
    """Start programs that leave their group, one of them an orphan, record the process ids, and hang."""
    sleeps = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(2)]
    orphan = subprocess.run(
        ["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True, check=True
    ).stdout
    note = Path(ctx.params["note"])
    draft = note.with_suffix(".draft")
    draft.write_text(f"{os.getpid()} {sleeps[0].pid} {sleeps[1].pid} {orphan}")
    draft.rename(note)
    if ctx.params.get("then") == "crash":
        os.abort()
    if ctx.params.get("then") != "return":
        time.sleep(1000)


def kill_supervisor(ctx: Any) -> None:
    """Fork a copy, which keeps the channel open, start programs, then stop or kill the supervisor."""
    copy = os.fork()
    if copy == 0:
        time.sleep(1000)
    program = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    bare = subprocess.Popen(["sleep", "1000"], env={})
    note = Path(ctx.params["note"])
    note.with_suffix(".draft").write_text(f"{os.getpid()} {os.getppid()} {copy} {program.pid} {bare.pid}")
    note.with_suffix(".draft").rename(note)
    os.kill(os.getppid(), signal.Signals[ctx.params["signal"]])
    time.sleep(1000)


def reports_much(ctx: Any) -> None:
    for number in range(200_000):
        ctx.progress(number / 200_000, done=number + 1)


def logs_much(ctx: Any) -> None:
    for number in range(20_000):
        ctx.logger.info("line", number=number)


def logs_oddly(ctx: Any) -> None:
    ctx.logger.info("not Unicode: \udcff", thing=Unprintable())


def reports_twice_and_waits(ctx: Any) -> None:
    ctx.progress(0.1)
    ctx.progress(0.2)
    while not ctx.cancelled:
        time.sleep(0.01)
    raise ctx.give_back()


def poll_flags(ctx: Any) -> dict[str, bool]:
    ctx.progress(0.25, "waiting", polls=1)
    while not (ctx.cancelled or ctx.shutting_down):
        time.sleep(0.01)
    Path(ctx.params["note"]).write_text(f"cancelled={ctx.cancelled} shutting_down={ctx.shutting_down}")
    raise ctx.give_back()


def results(ctx: Any) -> list[Any]:
    return [[row.index, row.output] for row in ctx.results(page=2)]


def memory_hog_then_small(ctx: Any) -> str:
    blocks = []
    try:
        while True:
            blocks.append(bytearray(8 * 1024 * 1024))
    except MemoryError:
        blocks.clear()
        raise


def return_nan(ctx: Any) -> dict[str, float]:
    return {"mean": float("nan")}


def big(ctx: Any) -> str:
    return "x" * ctx.params["megabytes"] * 1024 * 1024


def saves_plain(ctx: Any) -> None:
    ctx.save_checkpoint("one", {"a": 1})


def connects(ctx: Any) -> None:
    ctx.connect()


def saves_repeatedly(ctx: Any) -> None:
    while True:
        time.sleep(0.05)
        ctx.save_checkpoint("again")


async def stubborn(ctx: Any) -> str:
    """Ignores its cancellation."""
    end = time.monotonic() + ctx.params["seconds"]
    while time.monotonic() < end:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue
    return "done anyway"


async def sys_exit(ctx: Any) -> None:
    sys.exit(3)


async def exits_in_subtask(ctx: Any) -> None:
    async def sub() -> None:
        await asyncio.sleep(0.01)
        sys.exit(4)

    async with asyncio.timeout(10):
        await asyncio.create_task(sub())


async def interrupts(ctx: Any) -> None:
    raise KeyboardInterrupt


async def raises_base_exception(ctx: Any) -> None:
    raise BaseException("base")


async def exits_generator(ctx: Any) -> None:
    raise GeneratorExit


async def fails_without_message_async(ctx: Any) -> None:
    raise Unprintable


async def prints(ctx: Any) -> None:
    print("printed by a handler")
    os.write(1, b"written by a handler\n")
    await (await asyncio.create_subprocess_exec("echo", "said by a program")).wait()


async def forks(ctx: Any) -> int:
    """Fork two copies: one would continue the loop at once, the other at its first await."""
    if os.fork() == 0:
        return 0
    if os.fork() == 0:
        await asyncio.sleep(0)
        print("the copy continues", flush=True)
    await asyncio.sleep(0.2)
    return os.getpid()


async def runs_copies(ctx: Any) -> None:
    """Fork processes that call a function or run a program, and end."""
    copy = multiprocessing.get_context("fork").Process(target=os.getpid)
    copy.start()
    await asyncio.to_thread(copy.join)
    assert copy.exitcode == 0
    subprocess.run(["true"], check=True, preexec_fn=os.setsid)


async def blocks_afterwards(ctx: Any) -> None:
    async def block() -> None:
        await asyncio.sleep(0.05)
        time.sleep(1000)

    _LEFT.append(asyncio.create_task(block()))


_LEFT: list[Any] = []


async def block_loop(ctx: Any) -> None:
    time.sleep(1000)


async def spin(ctx: Any) -> None:
    while True:
        pass


async def block_in_subtask(ctx: Any) -> None:
    async def sub() -> None:
        time.sleep(1000)

    await asyncio.gather(asyncio.sleep(0.01), sub())


async def swallow_and_block(ctx: Any) -> None:
    while True:
        try:
            time.sleep(1000)
        except Exception:
            continue


async def backtrack(ctx: Any) -> None:
    """Catastrophic backtracking: busy in C, with the GIL held."""
    re.match(r"(a+)+$", "a" * 64 + "b")


async def wait_for_lock(ctx: Any) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


async def deadlock(ctx: Any) -> None:
    """Waits in C, without the GIL, and without handling signals."""
    while "note" in ctx.params and not Path(ctx.params["note"]).exists():
        await asyncio.sleep(0.01)
    mutex = ctypes.create_string_buffer(64)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)


async def burn_with_lock(ctx: Any) -> None:
    """Busy in C for ever, with the GIL held, and without handling signals."""
    collections.deque(itertools.repeat(None), maxlen=0)


async def own_timeout(ctx: Any) -> None:
    raise TimeoutError("the tile server did not answer")


async def disk_full(ctx: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def logs(ctx: Any) -> None:
    for number in range(150):
        ctx.logger.info("line", number=number)
    try:
        raise ValueError("password=hunter2")
    except ValueError:
        ctx.logger.exception("it broke")


async def secretive(ctx: Any) -> None:
    raise RuntimeError("postgresql://me:hunter2@db/x " + "y" * 20_000)


async def saves(ctx: Any) -> None:
    await ctx.save_checkpoint("one", {"a": 1})


async def give_back_unasked(ctx: Any) -> None:
    raise ctx.give_back()


async def cancels_itself(ctx: Any) -> None:
    raise asyncio.CancelledError


async def progresses(ctx: Any) -> None:
    ctx.progress(2.0, "tile 3 of 4", tiles=3)
    await asyncio.sleep(1000)


def _hostile_error() -> UnfitData:
    """An error whose every field is a problem for JSON, jsonb or a log."""
    error = UnfitData("the band is \ud800 empty\x00", code="raster.\ud800\x00" + "c" * 5_000_000)
    error.hint = "\x00\udfff" * 3_000_000
    error.__class__ = type("Unfit", (UnfitData,), {"__qualname__": "Unfit\ud800\x00" + "t" * 1_000_000})
    return error


def _report_hostile_facts(ctx: Any) -> None:
    ctx.progress(float("nan"), "half \ud800 \x00" * 100_000, tiles=float("inf"), size=1 << 70, name="\udc00", left=3)
    ctx.progress(float("-inf"), Unprintable(), **{"bad \ud800 name": 1, "text": Unprintable(), "left": 3})
    ctx.logger.info("event \ud800\x00", fact=Unprintable(), number=float("nan"), **{"na\ud800me": "\x00" * 1_000_000})


def hostile_reports(ctx: Any) -> None:
    _report_hostile_facts(ctx)
    raise _hostile_error()


async def hostile_reports_async(ctx: Any) -> None:
    _report_hostile_facts(ctx)
    raise _hostile_error()
