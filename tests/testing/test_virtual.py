"""Virtual time skips waits, but not work outside the event loop."""

import asyncio
import socket
import sys
import threading
import time

import pytest

from dagmaster.testing import DeadlockError, VirtualLoop, virtual_time


@virtual_time
async def test_a_wait_of_a_year_is_skipped():
    loop, started = asyncio.get_running_loop(), time.monotonic()

    await asyncio.sleep(365 * 24 * 3600)

    assert loop.time() == 365 * 24 * 3600
    assert time.monotonic() - started < 2


@virtual_time
async def test_waits_end_in_the_order_of_their_times():
    seen = []

    async def wait(name, seconds):
        await asyncio.sleep(seconds)
        seen.append((name, asyncio.get_running_loop().time()))

    await asyncio.gather(wait("late", 7200), wait("soon", 0.5), wait("between", 3600))

    assert seen == [("soon", 0.5), ("between", 3600), ("late", 7200)]


@virtual_time
async def test_timeouts_are_virtual():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await asyncio.sleep(3601)

    assert asyncio.get_running_loop().time() == 3600


@virtual_time
async def test_the_loop_waits_for_a_thread_and_counts_its_time():
    async with asyncio.timeout(30):
        await asyncio.to_thread(time.sleep, 0.05)

    assert 0.04 < asyncio.get_running_loop().time() < 30


@virtual_time
async def test_the_loop_waits_for_a_process():
    async with asyncio.timeout(30):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(0.1)")
        assert await process.wait() == 0

    assert 0.09 < asyncio.get_running_loop().time() < 30


@virtual_time
async def test_the_loop_does_not_wait_for_a_process_that_could_not_be_started():
    with pytest.raises(FileNotFoundError):
        await asyncio.create_subprocess_exec("/no/such/program")

    before = time.monotonic()
    await asyncio.sleep(3600)
    assert time.monotonic() - before < 2


@virtual_time
async def test_the_loop_waits_for_a_socket():
    local_socket, remote_socket = socket.socketpair()
    local_socket.setblocking(False)
    timer = threading.Timer(0.05, remote_socket.send, [b"hello"])
    timer.start()

    async with asyncio.timeout(30):
        assert await asyncio.get_running_loop().sock_recv(local_socket, 10) == b"hello"

    timer.join()
    local_socket.close()
    remote_socket.close()


def test_a_wait_that_can_never_end_is_reported():
    @virtual_time
    async def wait():
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        wait()


def test_a_decorated_function_takes_arguments_and_returns_its_result():
    @virtual_time
    async def add(one, *, other):
        return one + other

    assert add(1, other=2) == 3
    assert add.__name__ == "add"


def test_every_run_starts_at_zero():
    loop = VirtualLoop()
    assert loop.time() == 0
    loop.run_until_complete(asyncio.sleep(5))
    assert loop.time() == 5
    loop.close()
