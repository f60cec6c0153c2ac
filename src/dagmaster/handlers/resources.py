"""Resources that a worker gives to its handlers: storage, public URLs of published datasets, the exporter."""

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagmaster.addresses import Addresses
    from dagmaster.handlers.export.exporter import Exporter
    from dagmaster.settings import Settings
    from dagmaster.storage.zones import Storage


class Resources:
    """Each resource is opened when a handler first uses it: most tasks need none of them.

    Without `settings`, the settings are read from the environment.
    """

    def __init__(self, settings: "Settings | None" = None) -> None:
        self._settings = settings

    @cached_property
    def settings(self) -> "Settings":
        from dagmaster.settings import load

        return self._settings or load()

    @cached_property
    def storage(self) -> "Storage":
        from dagmaster.storage.zones import open_storage

        return open_storage(self.settings)

    @cached_property
    def addresses(self) -> "Addresses":
        from dagmaster.addresses import Addresses

        return Addresses.of(self.settings)

    @cached_property
    def exporter(self) -> "Exporter":
        from dagmaster.handlers.export.exporter import open_exporter

        return open_exporter(self.settings)
