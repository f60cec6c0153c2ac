"""A zone in an object store: the code that all object stores share; `azure` and `s3` are the backends.

Objects are read, listed and deleted through obstore. Each backend writes in its own way: obstore's uploads in parts
replace an existing object, and a published object must not be replaced. A write is one request, or parts that one
request commits; with `create_only`, both take effect only if the object does not exist. The store checks the checksum
of each request. At most `PARTS_AT_ONCE` parts of a file are in memory.
"""

import contextlib
import hashlib
import heapq
import io
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol
from uuid import UUID

from obstore import exceptions

from dagmaster.errors import Conflict, InvalidRequest, NotAllowed, NotFound, Unavailable
from dagmaster.storage import scratch
from dagmaster.storage.location import Folder, Location, Zone
from dagmaster.storage.store import (
    CHUNK_BYTES,
    ObjectInfo,
    StorageTier,
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

READ_BYTES = 8 * 1024 * 1024
_NO_CONTAINER = ("ContainerNotFound", "NoSuchBucket")  # the error codes of Azure and S3


@dataclass(frozen=True, slots=True)
class Written:
    """What a backend has written. The hash is that of the bytes that were sent."""

    etag: str
    sha256: str


class ObjectBackend(Protocol):
    """The part of a zone that differs between object stores. Errors are those of `Store`."""

    scheme: str  # of the URLs that other tools use

    def container(self, name: str) -> "Container":
        """obstore's store of a container."""
        ...

    def write(
        self, location: Location, content: BinaryIO, size_bytes: int, *, create_only: bool, tier: StorageTier
    ) -> Written:
        """Write an object. Raises Conflict (storage.taken) if `create_only` is set and the object exists."""
        ...

    def gdal_path(self, location: Location) -> str: ...

    def create_container(self, name: str) -> None: ...

    def remove_leftovers(self, container: str) -> None:
        """Remove leftovers of killed writers, if the store does not do it itself."""
        ...


class ObjectStore:
    def __init__(self, zone: Zone, backend: ObjectBackend, scratch_folder: Path, container: str | None = None) -> None:
        """`container` is the default one of the zone, in which `remove_leftovers` removes leftovers."""
        self.zone = zone
        self.scratch_folder = scratch_folder
        self._backend = backend
        self._default_container = container

    def put(self, location: Location, data: bytes, *, create_only: bool = False) -> Stored:
        return self._write(location, io.BytesIO(data), len(data), create_only, StorageTier.HOT)

    def put_file(
        self,
        location: Location,
        file: Path,
        *,
        move: bool = False,
        create_only: bool = False,
        tier: StorageTier = StorageTier.HOT,
    ) -> Stored:
        size_bytes = require_file(file).st_size
        with file.open("rb") as content:
            stored = self._existing(location, content, size_bytes) if create_only else None
            stored = stored or self._write(location, content, size_bytes, create_only, tier)
        if move:
            file.unlink(missing_ok=True)
        return stored

    def put_upload(self, location: Location, file: Path, digest: str) -> Stored:
        """Store the file of a finished upload. An existing object stays; Conflict if its content differs."""
        stored = self.put_file(location, file, create_only=True)
        if stored.sha256 != digest:
            raise Unavailable(f"the file of {location} has changed during its upload", code="storage.unavailable")
        return stored

    def get(self, location: Location) -> bytes:
        return b"".join(self._chunks(location))

    def get_range(self, location: Location, start: int, length: int) -> bytes:
        if start < 0 or length < 1:
            raise bad_range(location, start, length)
        try:
            with translated(location):
                return self._container(location).get_range(location.blob, start=start, length=length).to_bytes()
        except Unavailable:
            if start >= self.head(location).size_bytes:
                raise bad_range(location, start, length) from None
            raise

    def get_file(
        self, location: Location, file: Path, *, on_progress: Callable[[int], None] = lambda _bytes: None
    ) -> None:
        with contextlib.closing(self._chunks(location)) as chunks:
            first = next(chunks, b"")  # before the file is created: the object may not exist
            with file.open("xb") as target:
                for chunk in itertools.chain([first], chunks):
                    target.write(chunk)
                    on_progress(target.tell())

    def sha256(self, location: Location) -> str:
        digest = hashlib.sha256()
        for chunk in self._chunks(location):
            digest.update(chunk)
        return digest.hexdigest()

    def head(self, location: Location) -> ObjectInfo:
        with translated(location):
            return _info(location, self._container(location).head(location.blob))

    def exists(self, location: Location) -> bool:
        try:
            self.head(location)
        except NotFound:
            return False
        return True

    def list(self, folder: Folder) -> Iterator[ObjectInfo]:
        """Objects whose names break the rules are not listed, as in a folder: other tools may have written them."""
        with contextlib.suppress(NotFound), translated(folder):  # the container may not exist
            for page in self._backend.container(folder.container).list(f"{folder.path}/" if folder.path else None):
                for meta in page:
                    if location := _valid_location(folder, meta["path"]):
                        yield _info(location, meta)

    def page(self, container: str, prefix: str, after: str, limit: int) -> Sequence[ObjectInfo]:
        """Reads the names of the whole folder of the prefix: an object store returns them in no particular order."""
        folder = Folder(self.zone, container, prefix.rpartition("/")[0])
        matching = (
            info for info in self.list(folder) if info.location.blob.startswith(prefix) and info.location.blob > after
        )
        return heapq.nsmallest(limit, matching, key=lambda info: info.location.blob)

    def delete(self, location: Location) -> None:
        with contextlib.suppress(NotFound), translated(location):
            self._container(location).delete(location.blob)

    def folders(self, folder: Folder) -> Iterator[str]:
        with contextlib.suppress(NotFound), translated(folder):
            below = self._backend.container(folder.container).list_with_delimiter(folder.path or None)
            for path in below["common_prefixes"]:
                yield path.rstrip("/").rpartition("/")[2]

    def delete_all(self, folder: Folder) -> None:
        require_path(folder)
        for info in list(self.list(folder)):
            self.delete(info.location)

    def gdal_path(self, location: Location) -> str:
        return self._backend.gdal_path(location)

    def display_path(self, location: Location) -> str:
        return f"{self._backend.scheme}://{location.path}"

    def create_container(self, container: str) -> None:
        self._backend.create_container(container)

    def scratch(self, job_id: UUID) -> AbstractContextManager[Path]:
        return scratch.opened(self.scratch_folder, job_id)

    def scratch_jobs(self) -> Iterator[UUID]:
        return scratch.jobs_in(self.scratch_folder)

    def clear_scratch(self, job_id: UUID) -> None:
        scratch.move_away(self.scratch_folder / str(job_id), self._removed_folder)

    def remove_leftovers(self) -> None:
        scratch.delete_moved(self._removed_folder)
        if self._default_container:
            self._backend.remove_leftovers(self._default_container)

    @property
    def _removed_folder(self) -> Path:
        return self.scratch_folder / ".gone"

    def _write(
        self, location: Location, content: BinaryIO, size_bytes: int, create_only: bool, tier: StorageTier
    ) -> Stored:
        try:
            written = self._backend.write(location, content, size_bytes, create_only=create_only, tier=tier)
        except Conflict:
            # A write that is repeated because its response was lost finds its own object.
            if stored := self._existing(location, content, size_bytes):
                return stored
            raise
        return Stored(location, size_bytes, written.sha256, written.etag)

    def _existing(self, location: Location, content: BinaryIO, size_bytes: int) -> Stored | None:
        """The object, if it has this content; None if there is no object; Conflict if it has other content."""
        try:
            existing = self.head(location)
        except NotFound:
            return None
        digest = _digest(content)
        if existing.size_bytes != size_bytes or self.sha256(location) != digest:
            raise taken(location)
        return Stored(location, size_bytes, digest, existing.etag, is_new=False)

    def _container(self, location: Location) -> "Container":
        return self._backend.container(location.container)

    def _chunks(self, location: Location) -> Generator[bytes, None, None]:
        """All bytes of one version of the object, in requests that are short enough for their timeout."""
        container = self._container(location)
        with translated(location):
            response = container.get(location.blob)
            size_bytes, etag = response.meta["size"], response.meta["e_tag"]
            if size_bytes <= READ_BYTES:
                yield response.bytes().to_bytes()
                return
        del response
        for start in range(0, size_bytes, READ_BYTES):
            end = min(start + READ_BYTES, size_bytes)
            with translated(location):
                part = container.get(location.blob, options={"range": (start, end), "if_match": etag})
                yield part.bytes().to_bytes()


@contextlib.contextmanager
def translated(place: Location | Folder) -> Iterator[None]:
    """Translate errors of obstore. Its own messages may contain URLs with signatures."""
    try:
        yield
    except FileNotFoundError:
        raise not_found(place) from None
    except exceptions.AlreadyExistsError:
        assert isinstance(place, Location)
        raise taken(place) from None
    except exceptions.PreconditionError:
        raise Unavailable(f"{place} was replaced while it was read", code="storage.replaced") from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
        raise refused(place) from None
    except exceptions.BaseError as error:
        if any(code in str(error) for code in _NO_CONTAINER):
            raise no_container(place.container) from None
        if "InvalidAuthenticationInfo" in str(error):
            raise refused(place) from None
        raise unavailable(place, type(error).__name__) from None


def refused(place: Location | Folder | str) -> NotAllowed:
    return NotAllowed(
        f"the storage refuses access to {place}",
        code="storage.not-allowed",
        hint="check the credentials of this process and its role in the store",
    )


def no_container(name: str) -> NotFound:
    return NotFound(
        f"the container or bucket {name} does not exist",
        code="storage.no-container",
        hint="create it, or correct its name in the settings",
    )


def unavailable(place: Location | Folder | str, reason: str) -> Unavailable:
    return Unavailable(f"{place} cannot be accessed ({reason})", code="storage.unavailable")


def _digest(content: BinaryIO) -> str:
    """The hash of all bytes. The next read begins at the start again."""
    digest = hashlib.sha256()
    content.seek(0)
    while chunk := content.read(CHUNK_BYTES):
        digest.update(chunk)
    content.seek(0)
    return digest.hexdigest()


def _valid_location(folder: Folder, blob: str) -> Location | None:
    try:
        return Location(folder.zone, folder.container, blob)
    except InvalidRequest:
        return None


def _info(location: Location, meta: "ObjectMeta") -> ObjectInfo:
    return ObjectInfo(location, meta["size"], meta["last_modified"], plain_etag(meta["e_tag"]))


def plain_etag(etag: str | None) -> str:
    return (etag or "").strip('"')
