"""A zone whose objects are lost with the process, for tests."""

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from dagmaster.storage.location import Zone

if TYPE_CHECKING:
    from dagmaster.storage.objects import ObjectStore


def memory_store(zone: Zone, scratch_folder: Path) -> "ObjectStore":
    # Packages of an extra.
    from obstore.store import MemoryStore

    from dagmaster.storage.objects import ObjectStore

    containers: defaultdict[str, MemoryStore] = defaultdict(MemoryStore)
    return ObjectStore(zone, containers.__getitem__, scratch_folder)
