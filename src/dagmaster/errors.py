"""Every error that dagmaster raises on purpose. The class says who has to act.

    DagmasterError
    ├── InvalidRequest    the caller: the request cannot be understood or breaks a rule
    │   ├── InvalidWorkflow   … every mistake in a workflow file, with line and column
    │   └── NotAllowed        … the caller lacks the permission
    │       └── NotAuthenticated  … the caller has no credentials, or credentials that are not valid
    ├── NotFound          the caller: what the request names does not exist
    ├── Conflict          the caller: the present state does not allow it
    ├── UnfitData         the owner of the data: never retried
    ├── Unavailable       the environment: retried, and counted separately from failures of the handler
    ├── HandlerFailed     the handler: retried
    │   └── TimedOut      … it ran longer than its timeout
    ├── Fenced            no one: this process no longer owns what it tried to write
    ├── JobFailed         the caller of a client: the job whose result is needed did not complete
    └── WaitTimedOut      the caller of a client: the job has not ended within the time given

Any other exception is a bug. Exit codes, HTTP statuses and retries are derived from the class.
"""

import os
import traceback
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

_OWN_FOLDER = str(PurePath(__file__).parent) + os.sep  # a neighbour such as dagmaster_x has another prefix
_STANDARD_LIBRARY = str(PurePath(traceback.__file__).parent)


class DagmasterError(Exception):
    """What happened, to what (`facts`), and what to do (`hint`). `code` is stable across releases."""

    default_code = "error"

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.hint = hint
        self.facts = facts

    @property
    def status(self) -> int | None:
        """The HTTP status, if a client received the error from a server."""
        status = self.facts.get("status")
        return status if isinstance(status, int) else None

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidRequest(DagmasterError):
    default_code = "request.invalid"


class NotAllowed(InvalidRequest):
    default_code = "not-allowed"


class NotAuthenticated(NotAllowed):
    default_code = "auth.required"


class NotFound(DagmasterError):
    default_code = "not-found"


class Conflict(DagmasterError):
    default_code = "conflict"


class UnfitData(DagmasterError):
    default_code = "data.unfit"


class Unavailable(DagmasterError):
    default_code = "unavailable"


class HandlerFailed(DagmasterError):
    default_code = "handler.failed"


class TimedOut(HandlerFailed):
    default_code = "handler.timed-out"


class Fenced(DagmasterError):
    default_code = "fenced"


class JobFailed(DagmasterError):
    default_code = "job.failed"


class WaitTimedOut(DagmasterError, TimeoutError):
    default_code = "job.wait-timeout"


@dataclass(frozen=True, slots=True)
class WorkflowProblem:
    """One mistake in a workflow file. Lines and columns count from 1; 0 means the file as a whole."""

    message: str
    line: int = 0
    column: int = 0
    node: str | None = None
    code: str = "workflow.invalid"

    def at(self, file: str) -> str:
        where = f"{file}:{self.line}:{self.column}" if self.line else file
        node = f" node '{self.node}':" if self.node else ""
        return f"{where}:{node} {self.message}"


class InvalidWorkflow(InvalidRequest):
    """All problems of one file, in the order of their lines."""

    default_code = "workflow.invalid"

    def __init__(self, file: str, problems: list[WorkflowProblem]) -> None:
        self.file = file
        self.problems = sorted(problems, key=lambda p: (p.line, p.column))
        super().__init__("\n".join(p.at(file) for p in self.problems), file=file)


def place_of(error: BaseException) -> str:
    """Where an unexpected error was raised, or the call of the library that raised it: file, line and function."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "an unknown place"
    place = next((frame for frame in reversed(frames) if not _is_of_library(frame.filename)), frames[-1])
    return f"{PurePath(place.filename).name}, line {place.lineno}, in {place.name}"


def _is_of_library(file: str) -> bool:
    if file.startswith(_OWN_FOLDER):  # which is in site-packages, if dagmaster was installed from a wheel
        return False
    return "site-packages" in file or file.startswith((_STANDARD_LIBRARY, "<"))


def unexpected(error: Exception) -> InvalidRequest:
    """The error to record for an exception that is a bug. The exception's text is left out: it may contain values."""
    return InvalidRequest(
        f"unexpected {type(error).__qualname__} in {place_of(error)}",
        code="engine.unexpected",
        hint="this is a bug in dagmaster; please report it",
    )
