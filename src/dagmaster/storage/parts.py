"""Upload a file in parts. Several are sent at the same time, and each is read only when there is room for it, so that
memory is bounded."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, TypeVar

# The largest number of parts of a file in memory, including the one that is being read.
PARTS_AT_ONCE = 3
PART_BYTES = 8 * 1024 * 1024
_ROUND_BYTES = 1024 * 1024

Sent = TypeVar("Sent")


def part_size(size_bytes: int, max_parts: int) -> int:
    """The size of each part but the last: a large file has larger parts, because their number is limited."""
    minimum = -(-size_bytes // max_parts)
    return max(PART_BYTES, -(-minimum // _ROUND_BYTES) * _ROUND_BYTES)


def send_parts(content: BinaryIO, part_bytes: int, send: Callable[[int, bytes], Sent]) -> tuple[list[Sent], str, int]:
    """Send every part with its number, from 1. Returns the results in order, and hash and size of what was sent.

    Failures are noticed in the order of the parts. When one is noticed, no other part is started; the error is raised
    when the parts that are being sent have ended.
    """
    digest, size_bytes = hashlib.sha256(), 0
    results: list[Sent] = []
    pending: deque[Future[Sent]] = deque()
    with ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="upload") as pool:
        for number, part in enumerate(_read(content, part_bytes), start=1):
            digest.update(part)
            size_bytes += len(part)
            pending.append(pool.submit(send, number, part))
            if len(pending) == PARTS_AT_ONCE:
                results.append(pending.popleft().result())
        results += [each.result() for each in pending]
    return results, digest.hexdigest(), size_bytes


def _read(content: BinaryIO, part_bytes: int) -> Iterator[bytes]:
    while part := content.read(part_bytes):
        yield part
