"""Every backend, for the suite that each must pass. A new one joins the list."""

from pathlib import Path

from dagmaster.storage import Zone
from dagmaster.storage.local import LocalStore
from dagmaster.testing.memory_store import memory_store

BACKENDS = {
    "local": lambda folder: LocalStore(Zone.SILVER, folder / "silver"),
    "memory": lambda folder: memory_store(Zone.SILVER, folder / "scratch"),
}


def opened(name: str, folder: Path):
    return BACKENDS[name](folder)
