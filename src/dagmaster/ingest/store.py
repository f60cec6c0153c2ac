"""Put files of this machine into the bronze zone: they are copied if this machine can reach it, else uploaded."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dagmaster.client.json_client import JsonClient
from dagmaster.errors import InvalidRequest
from dagmaster.ingest.bronze import copy_missing, places_in_bronze
from dagmaster.ingest.progress import OpenBar
from dagmaster.ingest.sources import LocalFile
from dagmaster.ingest.upload import upload_files

if TYPE_CHECKING:
    from dagmaster.storage.zones import Storage


def store_files(
    client: JsonClient,
    storage: "Storage | None",
    files: Sequence[LocalFile],
    progress: OpenBar,
    note: Callable[[str], None],
    *,
    platform_id: str,
    is_dry_run: bool = False,
) -> tuple[str, list[str]]:
    """The container, and the name of each file in it. Without a storage the files are sent to the platform. A dry run
    stores nothing, and is refused unless the zone has all files."""
    if storage is None:
        if is_dry_run:
            raise _not_in_bronze(files[0])
        sources = upload_files(client, files, platform_id, progress, note)
        return sources[0].container, [source.blob for source in sources]
    copies = places_in_bronze(storage, files, progress)
    if is_dry_run and (missing := [copy.file for copy in copies if not copy.is_stored]):
        raise _not_in_bronze(missing[0])
    copy_missing(storage, copies, progress, note)
    return copies[0].location.container, [copy.location.blob for copy in copies]


def _not_in_bronze(file: LocalFile) -> InvalidRequest:
    return InvalidRequest(
        f"a dry run copies nothing, and the bronze zone does not have {file.label} yet",
        code="file.not-in-bronze",
        hint="submit it, or put it into the bronze zone with `dagmaster uploads put` and name it with --blob",
    )
