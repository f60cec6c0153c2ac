"""Raster files given as arguments: files, folders, patterns, and URLs (https, s3, az), as a list of files.

arguments ─▶ find_sources: paths and URLs, nothing read yet ─▶ downloaded: files of this machine
"""

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from dagmaster.errors import InvalidRequest, NotAllowed, NotFound
from dagmaster.ingest.progress import OpenBar
from dagmaster.quantities import counted
from dagmaster.storage.object_sources import ObjectSources, is_object_url, location_of

if TYPE_CHECKING:
    from dagmaster.settings import Settings
    from dagmaster.storage.zones import Storage

# Suffixes of the files that are used from a folder; a file that is given by its name may have any suffix.
_SUFFIXES = frozenset({".tif", ".tiff", ".jp2", ".img"})
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Source:
    """A file, or the URL of one that is downloaded; `argument` is the argument that names it."""

    argument: str
    path: Path | None = None

    @property
    def label(self) -> str:
        return str(self.path) if self.path else self.argument.partition("?")[0]


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file on this machine. A downloaded one may be moved instead of copied."""

    label: str
    path: Path
    is_downloaded: bool = False


def find_sources(arguments: Sequence[str], settings: "Settings") -> list[Source]:
    """The sources in the order of the arguments; the error names every invalid argument."""
    sources: list[Source] = []
    problems: list[InvalidRequest | NotFound | NotAllowed] = []
    for argument in arguments:
        try:
            sources += _expanded(argument, settings)
        except (InvalidRequest, NotFound, NotAllowed) as problem:
            problems.append(problem)
    if problems:
        first = problems[0]
        messages = "; ".join(problem.message for problem in problems)
        raise type(first)(messages, code=first.code, hint=first.hint, **first.facts)
    _require_distinct(sources)
    return sources


def _expanded(argument: str, settings: "Settings") -> list[Source]:
    if "://" in argument:
        return [_object_source(argument, settings) if is_object_url(argument) else _web_source(argument, settings)]
    path = Path(argument)
    if os.path.isdir(path):  # noqa: PTH112  pathlib raises for a name that is too long
        return _all_of([Source(argument, file) for file in _files_in(path)])
    if glob.has_magic(argument) and not os.path.lexists(argument):
        return _all_of([Source(argument, file) for file in _matching(argument)])
    return [Source(argument, source_file(path))]


def _web_source(url: str, settings: "Settings") -> Source:
    from dagmaster.storage.sources import web_host

    if "allow_https_sources" in settings.model_fields_set and not settings.allow_https_sources:
        raise NotAllowed(
            "URLs are not allowed as sources",
            code="source.not-allowed",
            hint="unset ALLOW_HTTPS_SOURCES, or set it to true",
        )
    try:
        web_host(url)
    except InvalidRequest as error:
        shown = url.partition("?")[0]
        raise InvalidRequest(f"{shown} is not an https URL", code=error.code, hint=error.hint) from None
    return Source(url)


def _object_source(url: str, settings: "Settings") -> Source:
    if "allow_object_sources" in settings.model_fields_set and not settings.allow_object_sources:
        raise NotAllowed(
            "URLs of objects are not allowed as sources",
            code="source.not-allowed",
            hint="unset ALLOW_OBJECT_SOURCES, or set it to true",
        )
    location_of(url)
    return Source(url)


def _files_in(folder: Path) -> list[Path]:
    try:
        files = sorted(file for file in folder.iterdir() if _is_raster_name(file))
    except OSError as error:
        raise InvalidRequest(f"{folder} cannot be read: {error.strerror}", code="file.unreadable") from None
    if not files:
        in_subfolders = next((file for file in folder.glob("*/**/*") if _is_raster_name(file)), None)
        suffix = in_subfolders.suffix if in_subfolders else ""
        suffixes = ", ".join(sorted(_SUFFIXES))
        raise NotFound(
            f"the folder {folder} has no rasters ({suffixes})",
            code="folder.empty",
            hint=f"its subfolders have rasters: use '{folder}/**/*{suffix}'" if in_subfolders else None,
        )
    return files


def _is_raster_name(file: Path) -> bool:
    return file.suffix.lower() in _SUFFIXES and not file.name.startswith(".") and file.is_file()


def _matching(pattern: str) -> list[Path]:
    files = sorted(path for name in glob.iglob(pattern, recursive=True) if not (path := Path(name)).is_dir())  # noqa: PTH207  pathlib's glob refuses absolute patterns
    if not files:
        hint = "a pattern is relative to the current folder; ** matches folders of any depth"
        raise NotFound(f"no file matches '{pattern}'", code="pattern.no-match", hint=hint)
    return files


def _all_of(sources: list[Source]) -> list[Source]:
    """Resolve each file; the error names all files that cannot be read."""
    problems: list[str] = []
    readable: list[Source] = []
    for source in sources:
        assert source.path is not None
        try:
            readable.append(Source(source.argument, source_file(source.path)))
        except (InvalidRequest, NotFound) as problem:
            problems.append(problem.message)
    if problems:
        raise InvalidRequest("; ".join(problems), code="file.unreadable", hint="repair these files, or leave them out")
    return readable


def _require_distinct(sources: list[Source]) -> None:
    arguments: dict[str, list[str]] = {}
    for source in sources:
        arguments.setdefault(source.label if source.path else source.argument, []).append(source.argument)
    repeated = [label for label, given_as in arguments.items() if len(given_as) > 1]
    if repeated:
        named = ", ".join(repeated[:_MAX_NAMED]) + (", …" if len(repeated) > _MAX_NAMED else "")
        is_or_are = "is" if len(repeated) == 1 else "are"
        raise InvalidRequest(
            f"{counted(len(repeated), 'file')} {is_or_are} given more than once: {named}",
            code="file.duplicate",
            hint="a folder, a pattern or a symbolic link may name the same file again; give each once",
        )


def source_file(path: Path) -> Path:
    """The file, with symbolic links resolved. Folders, pipes and empty files are refused."""
    try:
        real = path.resolve(strict=True)
        size_bytes = real.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        advice = "; a web address begins with https://" if str(path).startswith("https:/") else ""
        raise NotFound(f"there is no file {path}{advice}", code="file.not-found") from None
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its symbolic links form a loop"
        raise InvalidRequest(f"{path} cannot be read: {reason}", code="file.unreadable") from None
    if not real.is_file():
        raise InvalidRequest(f"{path} is not a file", code="file.not-a-file", hint="give files, folders or patterns")
    if not os.access(real, os.R_OK):
        raise InvalidRequest(f"{path} cannot be read: Permission denied", code="file.unreadable")
    if not size_bytes:
        raise InvalidRequest(
            f"{path} is empty", code="file.empty", hint="the copy or download may be incomplete; get the file again"
        )
    return real


@contextmanager
def downloaded(
    sources: Sequence[Source], settings: "Settings", storage: "Storage", progress: OpenBar
) -> Iterator[list[LocalFile]]:
    """All sources as files of this machine, as long as the block runs."""
    if all(source.path for source in sources):
        yield [LocalFile(source.label, source.path) for source in sources if source.path]
        return
    with storage.scratch(uuid4()) as scratch:  # on the file system of the store, so that files can be moved into it
        yield [
            LocalFile(source.label, source.path)
            if source.path
            else _download(source, scratch / str(number), settings, progress)
            for number, source in enumerate(sources)
        ]


def _download(source: Source, folder: Path, settings: "Settings", progress: OpenBar) -> LocalFile:
    from dagmaster.storage.download import DownloadRules, download, file_name

    folder.mkdir()  # one for each file, because names may repeat
    rules = DownloadRules(settings.max_download_mb * 1_000_000, settings.allow_private_sources)
    get = ObjectSources(settings).download if is_object_url(source.argument) else download
    with progress(f"downloading {file_name(source.argument)}") as bar:
        path = source_file(get(source.argument, folder, rules, bar.show))
    return LocalFile(source.label, path, is_downloaded=True)
