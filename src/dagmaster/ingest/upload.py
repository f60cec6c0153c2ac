"""Send files of this machine to the bronze zone of a remote platform, under their own names where possible."""

from collections.abc import Callable, Sequence

from dagmaster.client.json_client import JsonClient
from dagmaster.client.models.base import read
from dagmaster.client.models.uploads import UploadedSource, UploadInfo
from dagmaster.client.sending import SendOptions
from dagmaster.errors import InvalidRequest
from dagmaster.ingest.bronze import blob_name
from dagmaster.ingest.progress import OpenBar
from dagmaster.ingest.sources import LocalFile
from dagmaster.quantities import size_text


def upload_files(
    client: JsonClient, files: Sequence[LocalFile], platform_id: str, progress: OpenBar, note: Callable[[str], None]
) -> list[UploadedSource]:
    """Where each file is now. A file that the platform has already is not sent again. If another file has the name, a
    suffix is added, and `note` receives the new name. Two files with the same content are refused."""
    sources: dict[str, LocalFile] = {}
    uploaded = []
    for file in files:
        source = _upload(client, file, platform_id, progress, note)
        if (other := sources.setdefault(source.blob, file)) and other is not file:
            raise InvalidRequest(
                f"{other.label} and {file.label} have the same content",
                code="file.duplicate",
                hint="give only one of them",
            )
        uploaded.append(source)
    return uploaded


def _upload(
    client: JsonClient, file: LocalFile, platform_id: str, progress: OpenBar, note: Callable[[str], None]
) -> UploadedSource:
    name = blob_name(file.path)
    with progress(f"uploading {file.path.name}, {size_text(file.path.stat().st_size)}") as bar:
        options = SendOptions(name=name, platform_id=platform_id, on_progress=bar.show)
        upload = read(UploadInfo, client.upload_file(file.path, options))
    if upload.name != name:
        note(f"the platform has another file named {name}; this one is stored as {upload.name}")
    return upload.source
