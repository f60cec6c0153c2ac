"""A zone in an object store, through obstore. Today only `dagmaster.testing` uses it, with a store in memory."""

import contextlib
import hashlib
import heapq
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from obstore import exceptions

from dagmaster.errors import Conflict, NotAllowed, NotFound, Unavailable
from dagmaster.storage import scratch
from dagmaster.storage.location import Folder, Location, Zone
from dagmaster.storage.store import (
    CHUNK_BYTES,
    ObjectInfo,
    Stored,
    bad_range,
    not_found,
    require_file,
    require_path,
    taken,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore as Container

Containers = Callable[[str], "Container"]
GdalPath = Callable[[Location], str]


class ObjectStore:
    """`containers` returns the store of a container; `gdal_path` the path for GDAL, if GDAL can read the store."""

    def __init__(
        self, zone: Zone, containers: Containers, scratch_folder: Path, gdal_path: GdalPath | None = None
    ) -> None:
        self.zone = zone
        self._containers = containers
        self._scratch_folder = scratch_folder
        self._gdal_path = gdal_path

    def put(self, location: Location, data: bytes, *, create_only: bool = False) -> Stored:
        return self._put(location, data, len(data), hashlib.sha256(data).hexdigest(), create_only)

    def put_file(self, location: Location, file: Path, *, move: bool = False, create_only: bool = False) -> Stored:
        size_bytes = require_file(file).st_size
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        stored = self._put(location, file, size_bytes, digest, create_only)
        if move:
            file.unlink(missing_ok=True)
        return stored

    def get(self, location: Location) -> bytes:
        with _translated(location):
            return self._container(location).get(location.blob).bytes().to_bytes()

    def get_range(self, location: Location, start: int, length: int) -> bytes:
        if start < 0 or length < 1 or start >= self.head(location).size_bytes:
            raise bad_range(location, start, length)
        with _translated(location):
            return self._container(location).get_range(location.blob, start=start, length=length).to_bytes()

    def get_file(self, location: Location, file: Path) -> None:
        with _translated(location), contextlib.closing(self._chunks(location)) as chunks:
            first = next(chunks, b"")  # before the file is created: the object may not exist
            with file.open("xb") as target:
                target.write(first)
                target.writelines(chunks)

    def sha256(self, location: Location) -> str:
        digest = hashlib.sha256()
        with _translated(location):
            for chunk in self._chunks(location):
                digest.update(chunk)
        return digest.hexdigest()

    def head(self, location: Location) -> ObjectInfo:
        with _translated(location):
            return _info(location, self._container(location).head(location.blob))

    def exists(self, location: Location) -> bool:
        try:
            self.head(location)
        except NotFound:
            return False
        return True

    def list(self, folder: Folder) -> Iterator[ObjectInfo]:
        with _translated(folder):
            for page in self._containers(folder.container).list(folder.path or None):
                for meta in page:
                    yield _info(Location(folder.zone, folder.container, meta["path"]), meta)

    def page(self, container: str, prefix: str, after: str, limit: int) -> Sequence[ObjectInfo]:
        """Reads the names of the whole folder of the prefix: an object store returns them in no particular order."""
        folder = Folder(self.zone, container, prefix.rpartition("/")[0])
        matching = (
            info for info in self.list(folder) if info.location.blob.startswith(prefix) and info.location.blob > after
        )
        return heapq.nsmallest(limit, matching, key=lambda info: info.location.blob)

    def delete(self, location: Location) -> None:
        with contextlib.suppress(NotFound), _translated(location):
            self._container(location).delete(location.blob)

    def folders(self, folder: Folder) -> Iterator[str]:
        with _translated(folder):
            below = self._containers(folder.container).list_with_delimiter(folder.path or None)
        for path in below["common_prefixes"]:
            yield path.rpartition("/")[2]

    def delete_all(self, folder: Folder) -> None:
        require_path(folder)
        for info in list(self.list(folder)):
            self.delete(info.location)

    def gdal_path(self, location: Location) -> str:
        if self._gdal_path is None:
            raise NotAllowed(f"GDAL cannot read {location} in place", code="storage.no-gdal-path")
        return self._gdal_path(location)

    def scratch(self, job_id: UUID) -> AbstractContextManager[Path]:
        return scratch.opened(self._scratch_folder, job_id)

    def scratch_jobs(self) -> Iterator[UUID]:
        return scratch.jobs_in(self._scratch_folder)

    def clear_scratch(self, job_id: UUID) -> None:
        scratch.move_away(self._scratch_folder / str(job_id), self._removed_folder)

    def sweep_up(self) -> None:
        scratch.delete_moved(self._removed_folder)

    @property
    def _removed_folder(self) -> Path:
        return self._scratch_folder / ".gone"

    def _put(
        self, location: Location, content: bytes | Path, size_bytes: int, digest: str, create_only: bool
    ) -> Stored:
        mode: Literal["create", "overwrite"] = "create" if create_only else "overwrite"
        try:
            with _translated(location):
                put = self._container(location).put(location.blob, content, mode=mode)
        except Conflict:
            # A put that is repeated because its response was lost finds its own object.
            existing = self.head(location)
            if existing.size_bytes != size_bytes or self.sha256(location) != digest:
                raise
            return Stored(location, size_bytes, digest, existing.etag, is_new=False)
        return Stored(location, size_bytes, digest, _plain(put["e_tag"]))

    def _container(self, location: Location) -> "Container":
        return self._containers(location.container)

    def _chunks(self, location: Location) -> Generator[bytes, None, None]:
        for chunk in self._container(location).get(location.blob).stream(CHUNK_BYTES):
            yield bytes(chunk)


@contextlib.contextmanager
def _translated(what: Location | Folder) -> Iterator[None]:
    """Translate errors of obstore. Its own messages may contain URLs with signatures."""
    try:
        yield
    except FileNotFoundError:
        raise not_found(what) from None
    except exceptions.AlreadyExistsError:
        assert isinstance(what, Location)
        raise taken(what) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
        raise NotAllowed(f"the storage refuses access to {what}", code="storage.not-allowed") from None
    except exceptions.BaseError as error:
        raise Unavailable(f"{what} cannot be accessed ({type(error).__name__})", code="storage.unavailable") from None


def _info(location: Location, meta: "ObjectMeta") -> ObjectInfo:
    return ObjectInfo(location, meta["size"], meta["last_modified"], _plain(meta["e_tag"]))


def _plain(etag: str | None) -> str:
    return (etag or "").strip('"')
