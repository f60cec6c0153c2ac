"""All zones as one storage: `storage.put(location, …)` uses the store of the location's zone."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from dagmaster.errors import NotAllowed
from dagmaster.settings import Settings
from dagmaster.storage.backends import open_backend
from dagmaster.storage.file_uploads import FileUploads
from dagmaster.storage.local import LocalStore
from dagmaster.storage.location import (
    KINDS,
    Edition,
    Folder,
    Location,
    Zone,
    job_named,
    job_of_outputs,
    outputs_of_job,
)
from dagmaster.storage.object_sources import ObjectSources
from dagmaster.storage.sources import BLOBS_ONLY, SourceFile, SourceRules, find_source
from dagmaster.storage.store import ObjectInfo, StorageTier, Store, Stored
from dagmaster.storage.uploads import UploadParts

if TYPE_CHECKING:
    from dagmaster.storage.objects import ObjectStore


class Storage:
    """`containers` are the defaults of the zones. Scratch folders and intermediate blobs belong to silver."""

    def __init__(
        self,
        stores: Mapping[Zone, Store],
        containers: Mapping[Zone, str],
        source_rules: SourceRules = BLOBS_ONLY,
        uploads: UploadParts | None = None,
        objects: ObjectSources | None = None,
    ) -> None:
        self._stores = stores
        self.containers = containers
        self.source_rules = source_rules
        self._uploads = uploads
        self.objects = objects

    @property
    def uploads(self) -> UploadParts:
        """The unfinished uploads of the bronze zone."""
        if self._uploads is None:
            raise NotAllowed("this storage accepts no uploads", code="storage.no-uploads")
        return self._uploads

    def find_source(self, text: str, *, container: str | None = None, zone: Zone = Zone.BRONZE) -> SourceFile:
        """The file that a job names as its source, if the rules allow reading it."""
        return find_source(text, self, self.source_rules, container=container, zone=zone)

    def location(self, blob: str, *, zone: Zone = Zone.BRONZE, container: str | None = None) -> Location:
        """A blob in a container of a zone; without a container, in the default one."""
        return Location(zone, container or self.containers[zone], blob)

    def put(self, location: Location, data: bytes, *, create_only: bool = False) -> Stored:
        return self._stores[location.zone].put(location, data, create_only=create_only)

    def put_file(
        self,
        location: Location,
        file: Path,
        *,
        move: bool = False,
        create_only: bool = False,
        tier: StorageTier = StorageTier.HOT,
    ) -> Stored:
        return self._stores[location.zone].put_file(location, file, move=move, create_only=create_only, tier=tier)

    def get(self, location: Location) -> bytes:
        return self._stores[location.zone].get(location)

    def get_range(self, location: Location, start: int, length: int) -> bytes:
        return self._stores[location.zone].get_range(location, start, length)

    def get_file(self, location: Location, file: Path) -> None:
        self._stores[location.zone].get_file(location, file)

    def sha256(self, location: Location) -> str:
        return self._stores[location.zone].sha256(location)

    def head(self, location: Location) -> ObjectInfo:
        return self._stores[location.zone].head(location)

    def exists(self, location: Location) -> bool:
        return self._stores[location.zone].exists(location)

    def list(self, folder: Folder) -> Iterator[ObjectInfo]:
        return self._stores[folder.zone].list(folder)

    def page(self, prefix: str, after: str, limit: int, *, container: str | None = None) -> Sequence[ObjectInfo]:
        """Objects of the bronze zone whose names begin with `prefix`, in the order of their names."""
        return self._stores[Zone.BRONZE].page(container or self.containers[Zone.BRONZE], prefix, after, limit)

    def delete(self, location: Location) -> None:
        self._stores[location.zone].delete(location)

    def gdal_path(self, location: Location) -> str:
        return self._stores[location.zone].gdal_path(location)

    def display_path(self, location: Location) -> str:
        """The path or URL by which its owner finds an object with other tools."""
        return self._stores[location.zone].display_path(location)

    def scratch(self, job_id: UUID) -> AbstractContextManager[Path]:
        return self._stores[Zone.SILVER].scratch(job_id)

    def scratch_jobs(self) -> Iterator[UUID]:
        return self._stores[Zone.SILVER].scratch_jobs()

    def clear_scratch(self, job_id: UUID) -> None:
        self._stores[Zone.SILVER].clear_scratch(job_id)

    def intermediate_jobs(self) -> Iterator[UUID]:
        """The jobs that have intermediate blobs."""
        names = self._stores[Zone.SILVER].folders(Folder(Zone.SILVER, self.containers[Zone.SILVER]))
        return (job_id for name in names if (job_id := job_named(name)))

    def intermediate_blobs(self, job_id: UUID) -> Iterator[ObjectInfo]:
        return self.list(self._intermediate(job_id))

    def clear_intermediate(self, job_id: UUID) -> None:
        self._stores[Zone.SILVER].delete_all(self._intermediate(job_id))

    def output_jobs(self) -> Iterator[UUID]:
        """The jobs that made a dataset which belongs to no asset. A job may be named more than once."""
        for kind in KINDS:
            names = self._stores[Zone.SILVER].folders(Folder(Zone.SILVER, self.containers[Zone.SILVER], kind))
            yield from (job_id for name in names if (job_id := job_of_outputs(name)))

    def output_blobs(self, job_id: UUID) -> Iterator[ObjectInfo]:
        return (blob for folder in self._outputs(job_id) for blob in self.list(folder))

    def clear_outputs(self, job_id: UUID) -> None:
        for folder in self._outputs(job_id):
            self._stores[Zone.SILVER].delete_all(folder)

    def clear_edition(self, edition: Edition) -> int:
        """Delete the processed objects of an edition. Returns their number."""
        silver, count = self._stores[Zone.SILVER], 0
        for path in edition.folders():
            folder = Folder(Zone.SILVER, self.containers[Zone.SILVER], path)
            count += sum(1 for _ in silver.list(folder))
            silver.delete_all(folder)
        return count

    def copy(self, source: Location, target: Location, job_id: UUID) -> Stored:
        """Copy an object, also to another zone, through a scratch folder of the job. It appears when it is complete."""
        with self.scratch(job_id) as folder:
            file = folder / "copy"
            self.get_file(source, file)
            return self.put_file(target, file, move=True)

    def external_objects(self, edition: Edition) -> Iterator[ObjectInfo]:
        """The copies of an edition in the external zone."""
        return (each for folder in self._external(edition) for each in self.list(folder))

    def clear_external(self, edition: Edition) -> int:
        """Delete the copies of an edition in the external zone. Returns their number.

        Unlike in other zones, the files are deleted before this returns, because other programs may read the folder of
        the zone.
        """
        store, count = self._stores[Zone.EXTERNAL], 0
        for folder in self._external(edition):
            count += sum(1 for _ in store.list(folder))
            store.delete_all(folder)
        store.remove_leftovers()
        return count

    def create_containers(self) -> None:
        """Create the default container of each zone that does not exist yet."""
        for zone, store in self._stores.items():
            store.create_container(self.containers[zone])

    def remove_leftovers(self) -> None:
        for store in self._stores.values():
            store.remove_leftovers()

    def _outputs(self, job_id: UUID) -> Iterator[Folder]:
        return (Folder(Zone.SILVER, self.containers[Zone.SILVER], path) for path in outputs_of_job(job_id))

    def _external(self, edition: Edition) -> Iterator[Folder]:
        container = self.containers[Zone.EXTERNAL]
        return (Folder(Zone.EXTERNAL, container, path) for path in edition.external_folders())

    def _intermediate(self, job_id: UUID) -> Folder:
        return Folder(Zone.SILVER, self.containers[Zone.SILVER], str(job_id))


def open_storage(settings: Settings) -> Storage:
    """The zones of the settings. No folder and no object store is accessed before it is used."""
    containers = {
        Zone.BRONZE: settings.bronze_container,
        Zone.SILVER: settings.silver_container,
        Zone.EXTERNAL: settings.external_container,
    }
    stores = {zone: _open_store(settings, zone) for zone in Zone}
    return Storage(stores, containers, SourceRules.of(settings), _uploads(stores[Zone.BRONZE]), ObjectSources(settings))


def _open_store(settings: Settings, zone: Zone) -> "LocalStore | ObjectStore":
    backend = settings.backend_of(zone)
    if backend == "folder":
        folder: Path | None = getattr(settings, f"{zone}_folder")
        above = settings.storage_folder or settings.home() / "storage"
        return LocalStore(zone, folder or above / zone)
    opened = open_backend(settings, backend, zone)
    from dagmaster.storage.objects import ObjectStore

    scratch = settings.scratch_folder or settings.home() / "scratch"
    container: str = getattr(settings, f"{zone}_container")
    return ObjectStore(zone, opened, scratch / zone, container)


def _uploads(bronze: "LocalStore | ObjectStore") -> UploadParts:
    if isinstance(bronze, LocalStore):
        return FileUploads(bronze.root / ".uploads", bronze.link_file)
    return FileUploads(bronze.scratch_folder / ".uploads", bronze.put_upload)
