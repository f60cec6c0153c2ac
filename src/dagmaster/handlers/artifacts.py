"""What a phase of a handler leaves behind, described so that a later attempt can tell whether it is still there and the same.

An artifact is a URI and facts about it. What can be found out about a URI depends on its scheme: `LOOKS` has it all. For
other schemes a handler gives facts of its own when it saves a checkpoint, and a `check` of its own when it loads one.
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
        """A file as it is now: its size and its hash or, where it takes too long to read it all again, its time."""
        uri = _uri_of(place)
        looks = LOOKS.get(_scheme_of(uri))
        if looks is None:
            hint = "give `Artifact(uri, facts)`, and a `check` to load_checkpoint"
            raise HandlerFailed(f"nothing here can describe {uri}", code="checkpoint.bad-artifact", hint=hint)
        try:
            return cls(uri, {name: looks[name](uri) for name in ("size_bytes", by)})
        except (FileNotFoundError, NotADirectoryError):
            raise HandlerFailed(f"{uri} is not there", code="checkpoint.no-artifact") from None
        except IsADirectoryError:
            hint = "name the files in it"
            raise HandlerFailed(f"{uri} is a folder", code="checkpoint.bad-artifact", hint=hint) from None


Place = str | os.PathLike[str] | Artifact
Places = Place | Sequence[Place]


def described(artifact: Places | None) -> Iterable[Artifact]:
    """One artifact or several, as they are now. May read large files."""
    places = [artifact] if isinstance(artifact, str | os.PathLike | Artifact) else artifact or ()
    return [place if isinstance(place, Artifact) else Artifact.of(place) for place in places]


def problem_of(artifact: Artifact) -> str | None:
    """Why an artifact is not what it was. A store that can't be asked raises: that proves nothing. May read large files."""
    looks = LOOKS.get(_scheme_of(artifact.uri), {})
    if not artifact.facts or artifact.facts.keys() - looks.keys():
        return f"nothing here can check {artifact.uri}; pass `check` to load_checkpoint"
    try:
        for name, look in looks.items():  # the cheap ones come first
            if name in artifact.facts and look(artifact.uri) != artifact.facts[name]:
                return f"{artifact.uri} has changed: its {name} is another"
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return f"{artifact.uri} is gone"
    return None


def _scheme_of(uri: str) -> str:
    return uri.partition("://")[0]


def _uri_of(place: "str | os.PathLike[str]") -> str:
    text = os.fspath(place)
    return text if "://" in text else Path(text).absolute().as_uri()


def _path_of(uri: str) -> Path:
    return Path(url2pathname(urlsplit(uri).path))


def _stat_of(uri: str) -> os.stat_result:
    found = _path_of(uri).stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(uri)
    return found


def _sha256_of(uri: str) -> str:
    with _path_of(uri).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


LOOKS: Mapping[str, Mapping[str, Callable[[str], Any]]] = {
    "file": {
        "size_bytes": lambda uri: _stat_of(uri).st_size,
        "modified_ns": lambda uri: _stat_of(uri).st_mtime_ns,
        "sha256": _sha256_of,
    },
}
