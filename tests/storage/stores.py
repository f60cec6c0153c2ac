"""All backends that must pass the conformance suite. Add new ones to the list."""

from pathlib import Path

from dagmaster.storage import Zone
from dagmaster.storage.local import LocalStore
from dagmaster.testing.memory_store import memory_store
from tests.object_stores.servers import CONTAINERS

BACKENDS = {
    "local": lambda folder, _servers: LocalStore(Zone.SILVER, folder / "silver"),
    "memory": lambda folder, _servers: memory_store(Zone.SILVER, folder / "scratch"),
    "azure": lambda folder, servers: emptied(servers("azurite"), folder),
    "s3": lambda folder, servers: emptied(servers("s3_server"), folder),
}


def opened(name: str, folder: Path, servers=None):
    return BACKENDS[name](folder, servers)


def emptied(server, folder: Path):
    """The silver zone of a server that all tests share, without the objects of earlier tests."""
    from dagmaster.storage.location import Folder
    from dagmaster.storage.zones import _open_store

    store = _open_store(server.settings_for(folder), Zone.SILVER)
    for container in CONTAINERS[1:]:
        store.create_container(container)
        for info in list(store.list(Folder(Zone.SILVER, container))):
            store.delete(info.location)
    return store
