"""The source of a submission: objects of the bronze zone, pinned by their ETags."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from dagmaster.assets.states import SourceIdentity
from dagmaster.client.models.assets import MAX_BLOBS, SourceReference
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.quantities import first_of
from dagmaster.storage import ObjectInfo, Storage, Zone


@dataclass(frozen=True, slots=True)
class PinnedSource:
    """The objects as they are now. `is_many`: several objects become one collection."""

    container: str
    objects: tuple[ObjectInfo, ...]
    is_many: bool

    @property
    def blobs(self) -> list[str]:
        return [each.location.blob for each in self.objects]

    @property
    def etags(self) -> list[str]:
        return [each.etag for each in self.objects]

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.objects)

    @property
    def etag(self) -> str:
        """The ETag of a single object; for several, a hash over all names and ETags."""
        if not self.is_many:
            return self.objects[0].etag
        pairs = sorted((each.location.blob, each.etag) for each in self.objects)
        return hashlib.sha256(orjson.dumps(pairs)).hexdigest()

    @property
    def identity(self) -> SourceIdentity:
        return SourceIdentity(self.etag, self.size_bytes)

    @property
    def described(self) -> dict[str, Any]:
        """The source as it is recorded with the revision."""
        name = {"blobs": self.blobs} if self.is_many else {"blob": self.blobs[0]}
        return {"container": self.container, **name}


async def pin(storage: Storage, source: SourceReference, *, prefix: str | None = None) -> PinnedSource:
    """Read the ETag and the size of each object, or say which of them do not exist. With a `prefix`, only objects of
    the bronze container whose names begin with it may be named."""
    blobs, is_many = _blobs_in(source)
    container = source.container or storage.containers[Zone.BRONZE]
    if prefix is not None:
        _require_prefix(storage, container, blobs, prefix)
    return await asyncio.to_thread(_pinned, storage, container, blobs, is_many)


def _require_prefix(storage: Storage, container: str, blobs: Sequence[str], prefix: str) -> None:
    is_own = container == storage.containers[Zone.BRONZE] and all(blob.startswith(prefix) for blob in blobs)
    if not is_own:
        raise InvalidRequest(
            f"a platform may only name its own objects, which begin with '{prefix}'",
            code="source.not-own",
            hint=f"upload the file as '{prefix}NAME' to the bronze container",
        )


def _blobs_in(source: SourceReference) -> tuple[Sequence[str], bool]:
    if (source.blob is None) == (source.blobs is None):
        raise InvalidRequest(
            "a source must have either `blob` or `blobs`",
            code="source.invalid",
            hint="use `blob` for one object, `blobs` for several",
        )
    if source.blob is not None:
        return [source.blob], False
    blobs = source.blobs or []
    if not 0 < len(blobs) <= MAX_BLOBS or len(set(blobs)) < len(blobs):
        raise InvalidRequest(
            f"`blobs` must name 1 to {MAX_BLOBS:,} objects, each once",
            code="source.invalid",
            hint="correct the list of `blobs`",
        )
    return blobs, True


def _pinned(storage: Storage, container: str, blobs: Sequence[str], is_many: bool) -> PinnedSource:
    objects, missing = [], []
    for blob in blobs:
        try:
            objects.append(storage.head(storage.location(blob, container=container)))
        except NotFound:
            missing.append(blob)
    if missing:
        shown = first_of([f"'{container}/{blob}'" for blob in missing], 5)
        raise InvalidRequest(
            f"the source does not exist: {shown}",
            code="source.not-found",
            hint="upload it to the bronze zone first, or correct its name",
            missing=missing[:100],
        )
    return PinnedSource(container, tuple(objects), is_many)
