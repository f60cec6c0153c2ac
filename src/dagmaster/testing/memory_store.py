"""A zone whose objects are lost with the process, for tests."""

import hashlib
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from dagmaster.errors import NotAllowed
from dagmaster.storage.location import Location, Zone
from dagmaster.storage.store import StorageTier

if TYPE_CHECKING:
    from obstore.store import MemoryStore

    from dagmaster.storage.objects import ObjectStore, Written


def memory_store(zone: Zone, scratch_folder: Path) -> "ObjectStore":
    from dagmaster.storage.objects import ObjectStore  # needs a package of an extra

    return ObjectStore(zone, MemoryBackend(), scratch_folder)


class MemoryBackend:
    scheme = "memory"

    def __init__(self) -> None:
        from obstore.store import MemoryStore

        self._containers: defaultdict[str, MemoryStore] = defaultdict(MemoryStore)

    def container(self, name: str) -> "MemoryStore":
        return self._containers[name]

    def write(
        self, location: Location, content: BinaryIO, size_bytes: int, *, create_only: bool, tier: StorageTier
    ) -> "Written":
        from dagmaster.storage.objects import Written, plain_etag, translated

        data = content.read()
        with translated(location):
            put = self._containers[location.container].put(
                location.blob, data, mode="create" if create_only else "overwrite"
            )
        return Written(plain_etag(put["e_tag"]), hashlib.sha256(data).hexdigest())

    def gdal_path(self, location: Location) -> str:
        raise NotAllowed(f"GDAL cannot read {location} in place", code="storage.no-gdal-path")

    def create_container(self, name: str) -> None:
        """Nothing to do: the first write creates the container."""

    def remove_leftovers(self, container: str) -> None:
        """Nothing to do: writes leave no incomplete objects."""
