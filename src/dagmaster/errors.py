"""Every error that dagmaster raises on purpose. The class says who has to act.

    DagmasterError
    ├── InvalidRequest    the caller: the request cannot be understood or breaks a rule
    │   ├── InvalidWorkflow   … every mistake in a workflow file, with line and column
    │   └── NotAllowed        … the caller lacks the permission
    ├── NotFound          the caller: there is no such thing
    ├── Conflict          the caller: the present state does not allow it
    ├── UnfitData         the owner of the data: never retried
    ├── Unavailable       the environment: retried, and counted separately from failures of the handler
    ├── HandlerFailed     the handler: retried
    │   └── TimedOut      … it ran longer than its timeout
    └── Fenced            nobody: this process no longer owns what it tried to write

Any other exception is a bug. Exit codes, HTTP statuses and retries are derived from the class.
"""

from dataclasses import dataclass
from typing import Any


class DagmasterError(Exception):
    """What happened, to what (`facts`), and what to do (`hint`). `code` is stable across releases."""

    default_code = "error"

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.hint = hint
        self.facts = facts

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidRequest(DagmasterError):
    default_code = "request.invalid"


class NotAllowed(InvalidRequest):
    default_code = "not-allowed"


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
