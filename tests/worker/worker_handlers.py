"""Handlers that misbehave in various ways."""

import asyncio
import ctypes
import errno
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel


def pid(ctx: Any) -> dict[str, int]:
    return {"pid": os.getpid(), "parent": os.getppid(), "group": os.getpgid(0)}


class SpawnParams(BaseModel):
    note: str


def spawn(ctx: Any, params: SpawnParams) -> None:
    """Start a program, write down who runs, and hang."""
    program = subprocess.Popen(["sleep", "1000"])
    Path(params.note).write_text(f"{os.getpid()} {program.pid}")
    time.sleep(1000)


def daemonic(ctx: Any, params: SpawnParams) -> None:
    """Start a program that keeps the channel open, and die."""
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


def exit_politely(ctx: Any) -> None:
    sys.exit(3)


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


async def stubborn(ctx: Any) -> str:
    """Swallows its cancellation."""
    end = time.monotonic() + ctx.params["seconds"]
    while time.monotonic() < end:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue
    return "done anyway"


async def sys_exit(ctx: Any) -> None:
    sys.exit(3)


async def block_loop(ctx: Any) -> None:
    time.sleep(1000)


async def burn_with_lock(ctx: Any) -> None:
    """Catastrophic backtracking: busy in C, with the interpreter's lock held."""
    re.match(r"(a+)+$", "a" * 64 + "b")
    ctypes.PyDLL(None).pause()


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
