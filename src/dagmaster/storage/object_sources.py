"""Objects that are named by a URL, `s3://BUCKET/KEY` or `az://CONTAINER/BLOB`.

The stores are those of the settings, whether or not a zone uses them; CONTAINER is a container of the account
AZURE_STORAGE_ACCOUNT_NAME.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from dagmaster.errors import InvalidRequest, NotAllowed, NotFound, UnfitData
from dagmaster.settings import Settings
from dagmaster.storage.location import Location, Zone

if TYPE_CHECKING:
    from dagmaster.storage.download import DownloadRules, OnReceived
    from dagmaster.storage.objects import ObjectBackend, ObjectStore
    from dagmaster.storage.store import ObjectInfo

_BACKENDS: dict[str, Literal["azure", "s3"]] = {"az": "azure", "s3": "s3"}


def is_object_url(text: str) -> bool:
    return text.partition("://")[0] in _BACKENDS and "://" in text


def location_of(url: str) -> Location:
    """The location of the object of a URL. Its zone has no meaning."""
    scheme, _, path = url.partition("://")
    container, _, blob = path.partition("/")
    try:
        return Location(Zone.BRONZE, container, blob)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{scheme}://… is not the URL of an object: {error.message}",
            code="source.bad-address",
            hint="write s3://BUCKET/KEY or az://CONTAINER/BLOB",
        ) from None


class ObjectSources:
    """Opens each store when it is first used."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._backends: dict[str, ObjectBackend] = {}

    def gdal_path(self, url: str) -> str:
        """The path for a job. Raises UnfitData if the object does not exist: GDAL would report a temporary failure."""
        location = location_of(url)
        try:
            _head(self._store(url, Path()), location)
        except NotFound as error:
            raise UnfitData(error.message, code=error.code, hint=error.hint) from None
        return self._backend(url).gdal_path(location)

    def download(self, url: str, folder: Path, rules: "DownloadRules", on_progress: "OnReceived") -> Path:
        """Copy an object into a folder, with the time at which it was stored."""
        from dagmaster.storage.download import require_room

        location, store = location_of(url), self._store(url, folder)
        info = _head(store, location)
        require_room(folder, info.size_bytes, rules)
        target = folder / (location.name.strip(".") or "download")
        on_progress(0, info.size_bytes)
        store.get_file(location, target, on_progress=lambda done: on_progress(done, info.size_bytes))
        os.utime(target, (info.modified_at.timestamp(),) * 2)
        return target

    def _store(self, url: str, folder: Path) -> "ObjectStore":
        backend = self._backend(url)
        from dagmaster.storage.objects import ObjectStore

        return ObjectStore(Zone.BRONZE, backend, folder / uuid4().hex)

    def _backend(self, url: str) -> "ObjectBackend":
        scheme = url.partition("://")[0]
        if scheme not in self._backends:
            self._backends[scheme] = self._open(scheme)
        return self._backends[scheme]

    def _open(self, scheme: str) -> "ObjectBackend":
        from dagmaster.storage.backends import open_backend

        if scheme == "az" and not self._settings.azure_storage_account_name:
            raise NotAllowed(
                "az://… names a container of the configured storage account, and none is configured",
                code="source.no-account",
                hint="set AZURE_STORAGE_ACCOUNT_NAME",
            )
        own = self._settings.model_copy(update={"bronze_azure_account": None})
        return open_backend(own, _BACKENDS[scheme], Zone.BRONZE)


def _head(store: "ObjectStore", location: Location) -> "ObjectInfo":
    """Facts about an object. A store does not say whether the container or the object is missing."""
    try:
        return store.head(location)
    except NotFound:
        raise NotFound(
            f"there is no object '{location.blob}' in '{location.container}'",
            code="source.not-found",
            hint="correct the URL, or the settings of the store",
        ) from None
