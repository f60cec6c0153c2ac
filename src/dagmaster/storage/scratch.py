"""Scratch folders for large files, `<folder>/<job id>/<random>`: every caller gets a new one.

Folders are removed in two steps: one rename, after which the name is free at once, and deletion later, which may take
long.
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
    own = _create_in(folder / str(job_id))
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        with contextlib.suppress(OSError):
            own.parent.rmdir()  # fails while another task of the job uses it


def jobs_in(folder: Path) -> Iterator[UUID]:
    for name in folders_in(folder):
        if job_id := job_named(name):
            yield job_id


def folders_in(folder: Path) -> Iterator[str]:
    """Names of the folders right below a folder, without links."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        yield from (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def move_away(folder: Path, removed: Path) -> None:
    removed.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(removed / uuid4().hex)


def delete_moved(removed: Path) -> None:
    """Several processes may do this at once. A folder that cannot be deleted does not stop the deletion of others."""
    folders = [removed / name for name in folders_in(removed)]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    if left := sum(folder.exists() for folder in folders):
        raise Unavailable(
            f"{left} removed folders cannot be deleted",
            code="storage.unavailable",
            hint=f"check the owner and permissions of the folders in {removed.name} of the zone",
        )


def _create_in(folder: Path) -> Path:
    for tries_left in reversed(range(_TRIES)):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return Path(tempfile.mkdtemp(dir=folder))
        except FileNotFoundError:  # another task has just removed it
            if not tries_left:
                raise
    raise AssertionError
