"""Checkpoints as handlers save and find them: what may be kept, and which of those that were kept can be built on.

Shared by both ways of running a handler: in the worker's loop and in a process of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from dagmaster.errors import HandlerFailed
from dagmaster.handlers.artifacts import Artifact, Places, described, problem_of
from dagmaster.handlers.calling import to_json
from dagmaster.handlers.context import Check, IsValid

MAX_BYTES = 256 * 1024  # data and artifacts together: every later attempt reads them
MAX_NAME = 200

Warn = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Phase:
    """One checkpoint, as it is saved and found again."""

    name: str
    data: Any = None
    artifacts: tuple[Artifact, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def phase_of(saved: Mapping[str, Any]) -> Phase:
    """The other way round."""
    return Phase(saved["name"], saved["data"], tuple(Artifact(**told) for told in saved["artifacts"] or ()))


def pack(name: str, data: Any, artifact: Places | None) -> Phase:
    """What a handler wants to keep, with its artifacts as they are now. May read large files."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise HandlerFailed(f"a checkpoint's name has 1 to {MAX_NAME} characters", code="checkpoint.bad-name")
    kept = [Artifact(told.uri, to_json(dict(told.facts), f"artifact {told.uri}")) for told in described(artifact)]
    phase = Phase(to_json(name, "name"), to_json(data, "checkpoint"), tuple(kept))
    size_bytes = len(orjson.dumps(phase.as_json()))
    if size_bytes > MAX_BYTES:
        raise HandlerFailed(
            f"checkpoint '{name}' has {size_bytes:,} bytes, more than the {MAX_BYTES:,} allowed",
            code="checkpoint.too-large",
            hint="write it to a file, and name that as the checkpoint's artifact",
            size_bytes=size_bytes,
            limit_bytes=MAX_BYTES,
        )
    return phase


def last_trusted(
    phases: Sequence[Phase], is_valid: IsValid | None, check: Check | None, warn: Warn
) -> tuple[str, Any] | None:
    """The last phase that can be built on; those after it are told of."""
    for phase in reversed(phases):
        problem = refusal(phase, is_valid) or next((p for a in phase.artifacts if (p := _problem(a, check))), None)
        if problem is None:
            return phase.name, phase.data
        tell_distrust(warn, phase, problem)
    return None


def refusal(phase: Phase, is_valid: IsValid | None) -> str | None:
    """What the handler itself says of a phase."""
    return "the handler refuses it" if is_valid is not None and not is_valid(phase.name, phase.data) else None


def refused_by_check(artifact: Artifact) -> str:
    return f"the handler's check refuses {artifact.uri}"


def tell_distrust(warn: Warn, phase: Phase, problem: str) -> None:
    warn("a checkpoint is not trusted; going on after one before it", checkpoint=phase.name, why=problem)


def _problem(artifact: Artifact, check: Check | None) -> str | None:
    if check is None:
        return problem_of(artifact)
    return None if check(artifact) else refused_by_check(artifact)
