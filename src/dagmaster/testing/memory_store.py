"""A zone whose objects are lost with the process, for tests."""

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from dagmaster.storage.location import Zone
from dagmaster.storage.objects import ObjectStore

if TYPE_CHECKING:
    pass


def memory_store(zone: Zone, scratch_folder: Path) -> ObjectStore:
    from obstore.store import MemoryStore  # of an extra

    containers: defaultdict[str, MemoryStore] = defaultdict(MemoryStore)
    return ObjectStore(zone, containers.__getitem__, scratch_folder)
