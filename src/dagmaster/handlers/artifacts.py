"""Artifacts of a checkpoint: files whose later state shows whether the checkpoint is still valid.

An artifact is a URI and facts about it. `MEASUREMENTS` has the facts that can be measured for a scheme. For other
schemes a handler passes its own facts when it saves a checkpoint, and its own `check` when it loads one.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

from dagmaster.errors import HandlerFailed


@dataclass(frozen=True, slots=True)
class Artifact:
    """`Artifact.of("/data/tiles.gpkg")`, or a URI and facts that the handler's own `check` understands."""

    uri: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, place: "str | os.PathLike[str]", *, by: Literal["sha256", "modified_ns"] = "sha256") -> "Artifact":
        """The current state of a file: its size and hash. Pass `by="modified_ns"` if hashing would take too long."""
        uri = _uri_of(place)
        measurements = MEASUREMENTS.get(_scheme_of(uri))
        if measurements is None:
            hint = "pass `Artifact(uri, facts)`, and a `check` to load_checkpoint"
            raise HandlerFailed(f"the scheme of {uri} is not supported", code="checkpoint.bad-artifact", hint=hint)
        try:
            return cls(uri, {name: measurements[name](uri) for name in ("size_bytes", by)})
        except (FileNotFoundError, NotADirectoryError):
            raise HandlerFailed(f"{uri} does not exist", code="checkpoint.no-artifact") from None
        except IsADirectoryError:
            hint = "name the files in it"
            raise HandlerFailed(f"{uri} is a folder", code="checkpoint.bad-artifact", hint=hint) from None


ArtifactLike = str | os.PathLike[str] | Artifact
OneOrMoreArtifacts = ArtifactLike | Sequence[ArtifactLike]


def artifacts_of(artifact: OneOrMoreArtifacts | None) -> Iterable[Artifact]:
    """The current state of one or more artifacts. May read large files."""
    places = [artifact] if isinstance(artifact, str | os.PathLike | Artifact) else artifact or ()
    return [place if isinstance(place, Artifact) else Artifact.of(place) for place in places]


def problem_of(artifact: Artifact) -> str | None:
    """How an artifact has changed; None if it has not.

    Raises an error if the artifact cannot be read: that does not prove a change. May read large files.
    """
    measurements = MEASUREMENTS.get(_scheme_of(artifact.uri), {})
    if not artifact.facts or artifact.facts.keys() - measurements.keys():
        return f"the facts of {artifact.uri} cannot be measured; pass `check` to load_checkpoint"
    try:
        for name, measure in measurements.items():  # the cheap ones come first
            if name in artifact.facts and measure(artifact.uri) != artifact.facts[name]:
                return f"{artifact.uri} has changed: its {name} differs"
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return f"{artifact.uri} no longer exists"
    return None


def _scheme_of(uri: str) -> str:
    return uri.partition("://")[0]


def _uri_of(place: "str | os.PathLike[str]") -> str:
    text = os.fspath(place)
    return text if "://" in text else Path(text).absolute().as_uri()


def _path_of(uri: str) -> Path:
    return Path(url2pathname(urlsplit(uri).path))


def _stat_of(uri: str) -> os.stat_result:
    status = _path_of(uri).stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(uri)
    return status


def _sha256_of(uri: str) -> str:
    with _path_of(uri).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


MEASUREMENTS: Mapping[str, Mapping[str, Callable[[str], Any]]] = {
    "file": {
        "size_bytes": lambda uri: _stat_of(uri).st_size,
        "modified_ns": lambda uri: _stat_of(uri).st_mtime_ns,
        "sha256": _sha256_of,
    },
}
