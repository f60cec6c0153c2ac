"""Every error dagmaster raises on purpose, as a family that says whose move it is.

    DagmasterError
    ├── InvalidRequest    the caller's: what was asked cannot be understood or is not allowed by the rules
    │   ├── InvalidWorkflow   … and here is every mistake in the file, with line and column
    │   └── NotAllowed        … it is understood, and not theirs to ask
    ├── NotFound          the caller's: nothing by that name
    ├── Conflict          the state forbids it
    ├── UnfitData         the submitted data's: never retried
    ├── Unavailable       the environment's: retried, and counted apart from the handler's own failures
    ├── HandlerFailed     the handler's: retried
    │   └── TimedOut      … it ran longer than it may
    └── Fenced            this process no longer owns what it tried to write

Anything else that surfaces is a bug of ours. Exit codes, HTTP statuses and retries are read from tables at the edges.
"""

from dataclasses import dataclass
from typing import Any


class DagmasterError(Exception):
    """Says what happened, to what (`facts`), and what to do (`hint`); `code` is stable across releases."""

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
    """Carries every problem found in one file, in the order of their lines."""

    default_code = "workflow.invalid"

    def __init__(self, file: str, problems: list[WorkflowProblem]) -> None:
        self.file = file
        self.problems = sorted(problems, key=lambda p: (p.line, p.column))
        super().__init__("\n".join(p.at(file) for p in self.problems), file=file)
