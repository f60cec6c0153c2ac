"""How an attempt ended, and what a failure is blamed on: the data, the environment, the handler or the engine."""

import errno
import socket
import traceback
from collections.abc import Mapping
from typing import Any, NamedTuple

from dagmaster.errors import DagmasterError, InvalidRequest, Unavailable, UnfitData
from dagmaster.handlers.calling import HandlerOutput
from dagmaster.jobs.payload import INLINE_BYTES, Encoded, Reference
from dagmaster.jobs.states import Blame, TaskStatus
from dagmaster.worker.reported import text, text_of

MAX_MESSAGE = 4_000
MAX_TRACEBACK = 8_000
MAX_NAME = 200  # of an error code, and of the name of its class
OUT_OF_MEMORY = "handler.out-of-memory"
CHILD_DIED = "worker.child-died"
MEMORY_HINT = "it may have run out of memory"

_ENVIRONMENT_ERRNOS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
        errno.EAGAIN,
        errno.ESTALE,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ETIMEDOUT,
    }
)


class Outcome(NamedTuple):
    """`status` is succeeded, failed, returned (stopped early) or cancelled (stopped because the task was cancelled). An
    output that is too large for a report is kept as JSON (`encoded`) until it is stored, then as a reference."""

    status: TaskStatus
    output: Any = None
    error: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    size_bytes: int = 4  # in a report
    encoded: Encoded | None = None
    output_ref: Reference | None = None


RETURNED = Outcome(TaskStatus.RETURNED)
CANCELLED = Outcome(TaskStatus.CANCELLED)


def succeeded(result: HandlerOutput) -> Outcome:
    """What a handler returned, in the form that is reported."""
    size = len(result.encoded)
    if size <= INLINE_BYTES:
        return Outcome(TaskStatus.SUCCEEDED, result.output, None, result.metrics, size)
    return Outcome(TaskStatus.SUCCEEDED, metrics=result.metrics, encoded=result.encoded)


def failed(error: BaseException, *, metrics: dict[str, Any] | None = None) -> Outcome:
    return Outcome(TaskStatus.FAILED, error=describe(error), metrics=metrics)


def is_memory_failure(error: Mapping[str, Any]) -> bool:
    """Whether a described error means that the handler reached its memory limit, or that its process was probably
    killed because of its memory."""
    code, hint = error.get("code"), error.get("hint")
    return code == OUT_OF_MEMORY or (code == CHILD_DIED and isinstance(hint, str) and hint.startswith(MEMORY_HINT))


def blame_of(error: BaseException) -> Blame:
    if isinstance(error, UnfitData | InvalidRequest):
        return Blame.DATA
    if isinstance(error, Unavailable | ConnectionError | TimeoutError | socket.gaierror):
        return Blame.ENVIRONMENT
    if isinstance(error, OSError) and error.errno in _ENVIRONMENT_ERRNOS:
        return Blame.ENVIRONMENT
    return Blame.HANDLER


def describe(error: BaseException) -> dict[str, Any]:
    """The error as it is stored and shown: limited in size and without secrets."""
    facts: dict[str, Any] = {
        "message": text(_message(error), MAX_MESSAGE),
        "blame": blame_of(error).value,
        "code": text(_code(error), MAX_NAME),
        "type": text(type(error).__qualname__, MAX_NAME),
    }
    if isinstance(error, DagmasterError) and error.hint:
        facts["hint"] = text(error.hint, MAX_MESSAGE)
    if error.__traceback__ is not None:
        facts["traceback"] = text(_traceback(error), MAX_TRACEBACK, keep_end=True)
    return facts


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as problem:  # the text of a chained exception may fail, too
        return f"(the traceback cannot be formatted: {type(problem).__qualname__})"


def _message(error: BaseException) -> str:
    if isinstance(error, DagmasterError):
        return text_of(error.message)
    if isinstance(error, SystemExit):
        return f"the handler called sys.exit({'' if error.code is None else text_of(error.code, repr)})"
    return text_of(error) or type(error).__qualname__


def _code(error: BaseException) -> str:
    if isinstance(error, DagmasterError):
        return error.code
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    return "environment.failed" if blame_of(error) is Blame.ENVIRONMENT else "handler.failed"
