"""Folders for large files on their way: `<folder>/<job id>/<random>`, one for each who asks.

Also how folders go: taken away by one rename, so that whoever comes after finds nothing and may begin anew at once, and deleted
later, which may take long.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

from dagmaster.errors import Unavailable
from dagmaster.storage.location import job_named

_TRIES = 5


@contextlib.contextmanager
def opened(folder: Path, job_id: UUID) -> Iterator[Path]:
    own = _made_in(folder / str(job_id))
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        with contextlib.suppress(OSError):
            own.parent.rmdir()  # unless another task of the job is at work in it


def jobs_in(folder: Path) -> Iterator[UUID]:
    for name in folders_in(folder):
        if job_id := job_named(name):
            yield job_id


def folders_in(folder: Path) -> Iterator[str]:
    """Links are none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        yield from (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def take_away(folder: Path, gone: Path) -> None:
    gone.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone / uuid4().hex)


def delete_taken(gone: Path) -> None:
    """Several may be at it. What can't be deleted is not in the way of the rest."""
    taken = [gone / name for name in folders_in(gone)]
    for folder in taken:
        shutil.rmtree(folder, ignore_errors=True)
    if left := sum(folder.exists() for folder in taken):
        raise Unavailable(
            f"{left} folders that were taken away can't be deleted",
            code="storage.unavailable",
            hint=f"look at whose they are, below {gone.name} of the zone",
        )


def _made_in(folder: Path) -> Path:
    for tries_left in reversed(range(_TRIES)):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return Path(tempfile.mkdtemp(dir=folder))
        except FileNotFoundError:  # the last one who was at work in it has just removed it
            if not tries_left:
                raise
    raise AssertionError
