"""Checkpoints: what a handler may save, and which saved ones are still valid.

Used for handlers in the worker's loop and in child processes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from dagmaster.errors import HandlerFailed
from dagmaster.handlers.artifacts import Artifact, OneOrMoreArtifacts, artifacts_of, problem_of
from dagmaster.handlers.calling import to_json
from dagmaster.handlers.context import ArtifactCheck, IsValid

MAX_BYTES = 256 * 1024  # data and artifacts together: every later attempt reads them
MAX_NAME = 200

Warn = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Phase:
    """One checkpoint."""

    name: str
    data: Any = None
    artifacts: tuple[Artifact, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def phase_of(saved: Mapping[str, Any]) -> Phase:
    """A phase from its JSON."""
    return Phase(saved["name"], saved["data"], tuple(Artifact(**fields) for fields in saved["artifacts"] or ()))


def pack(name: str, data: Any, artifact: OneOrMoreArtifacts | None) -> Phase:
    """A phase to be saved, with the current state of its artifacts. May read large files."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise HandlerFailed(
            f"the name of a checkpoint must have 1 to {MAX_NAME} characters", code="checkpoint.bad-name"
        )
    artifacts = [
        Artifact(each.uri, to_json(dict(each.facts), f"artifact {each.uri}")) for each in artifacts_of(artifact)
    ]
    phase = Phase(to_json(name, "name"), to_json(data, "checkpoint"), tuple(artifacts))
    size_bytes = len(orjson.dumps(phase.as_json()))
    if size_bytes > MAX_BYTES:
        raise HandlerFailed(
            f"checkpoint '{name}' has {size_bytes:,} bytes, more than the {MAX_BYTES:,} allowed",
            code="checkpoint.too-large",
            hint="write the data to a file, and pass that as the artifact of the checkpoint",
            size_bytes=size_bytes,
            limit_bytes=MAX_BYTES,
        )
    return phase


def last_valid(
    phases: Sequence[Phase], is_valid: IsValid | None, check: ArtifactCheck | None, warn: Warn
) -> tuple[str, Any] | None:
    """Name and data of the last valid phase. Later ones are logged as invalid."""
    for phase in reversed(phases):
        problem = refusal(phase, is_valid) or next((p for a in phase.artifacts if (p := _problem(a, check))), None)
        if problem is None:
            return phase.name, phase.data
        log_invalid(warn, phase, problem)
    return None


def refusal(phase: Phase, is_valid: IsValid | None) -> str | None:
    """The reason if the handler itself rejects a phase; None otherwise."""
    return "the handler rejects it" if is_valid is not None and not is_valid(phase.name, phase.data) else None


def refused_by_check(artifact: Artifact) -> str:
    return f"the check of the handler rejects {artifact.uri}"


def log_invalid(warn: Warn, phase: Phase, problem: str) -> None:
    warn("a checkpoint is not valid and is not used", checkpoint=phase.name, why=problem)


def _problem(artifact: Artifact, check: ArtifactCheck | None) -> str | None:
    if check is None:
        return problem_of(artifact)
    return None if check(artifact) else refused_by_check(artifact)
