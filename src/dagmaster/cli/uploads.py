"""`dagmaster uploads` and `dagmaster sources`: send files to the bronze zone, and list its objects."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dagmaster.cli.command import Group, State, page_options, pass_state
from dagmaster.cli.completion import platform_option
from dagmaster.cli.tables import Column, ago, print_records
from dagmaster.client.escaping import one_line

if TYPE_CHECKING:
    from dagmaster.client.models.base import Json
    from dagmaster.client.models.uploads import UploadInfo


@click.group(cls=Group)
def uploads() -> None:
    """Send files to the bronze zone, in parts."""


@uploads.command("put")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--name", metavar="NAME", help="Name for the object, which is stored as PLATFORM/NAME  [default: name of the file]"
)
@platform_option("Platform that the object belongs to  [default: that of the key, or local]")
@click.option(
    "--fail-if-exists",
    "--refuse",
    "fails_if_exists",
    is_flag=True,
    help="Fail if the name is in use, instead of adding a suffix",
)
@pass_state
def put_file(state: State, *, file: Path, name: str | None, platform_id: str | None, fails_if_exists: bool) -> None:
    """Send FILE, and print the name of its object: CONTAINER/BLOB.

    Repeating the command continues an upload that was interrupted. A file that was sent before is not sent again.
    `dagmaster assets submit --blob CONTAINER/BLOB` submits it.
    """
    from dagmaster.cli.progress import progress_bar
    from dagmaster.client.models.base import read
    from dagmaster.client.models.uploads import UploadInfo
    from dagmaster.client.sending import SendOptions
    from dagmaster.ingest.bronze import blob_name
    from dagmaster.ingest.sources import source_file
    from dagmaster.quantities import size_text

    path = source_file(file)
    with progress_bar(state, f"uploading {file.name}, {size_text(path.stat().st_size)}") as bar:
        options = SendOptions(
            name=name or blob_name(file),
            platform_id=platform_id,
            if_exists="refuse" if fails_if_exists else "rename",
            on_progress=bar.show,
        )
        response = state.client.upload_file(path, options)
    source = read(UploadInfo, response).source
    state.print_result(response, f"{source.container}/{source.blob}")


@uploads.command("ls")
@click.option("--state", type=click.Choice(["open", "finished"]), help="Only uploads in this state")
@page_options(1000, default=50, entry="upload")
@pass_state
def list_uploads(state: State, /, *, limit: int, after: str | None, **filters: str | None) -> None:
    """List uploads, newest first."""
    state.print_page("uploads", state.client.uploads(limit, after, **filters), _print_uploads)


@uploads.command("rm")
@click.argument("upload", type=click.UUID)
@pass_state
def remove_upload(state: State, upload: object) -> None:
    """Cancel an upload that is not finished. UPLOAD is its id."""
    state.client.cancel_upload(str(upload))
    state.print_result({"upload_id": str(upload), "is_removed": True}, f"upload {upload} is removed")


@click.group(cls=Group)
def sources() -> None:
    """List the objects of the bronze zone."""


@sources.command("ls")
@click.argument("prefix", default="")
@click.option("--container", metavar="NAME", help="Container to list  [default: that of the bronze zone]")
@page_options(10_000, default=50, entry="object", metavar="BLOB")
@pass_state
def list_sources(state: State, *, prefix: str, container: str | None, limit: int, after: str | None) -> None:
    """List objects by name; with PREFIX, only those whose names begin with it."""
    page = state.client.sources(limit, after, prefix=prefix or None, container=container)
    state.print_page("sources", page, _print_sources, noun="objects")


def _print_uploads(state: State, page: "list[Json]") -> None:
    from dagmaster.client.models.uploads import UploadInfo

    columns: list[Column[UploadInfo]] = [
        Column("upload", lambda upload: str(upload.upload_id)),
        Column("age", lambda upload: ago(upload.created_at, state.client.now), is_number=True, drop=2),
        Column("state", lambda upload: str(upload.state), is_state=True),
        Column("arrived", _received_text, is_number=True, drop=1),
        Column("by", lambda upload: one_line(upload.created_by or ""), drop=3),
        Column("object", lambda upload: one_line(f"{upload.source.container}/{upload.source.blob}"), is_long=True),
    ]
    print_records(state, columns, UploadInfo, page)


def _received_text(upload: "UploadInfo") -> str:
    from dagmaster.quantities import size_text

    total = size_text(upload.size_bytes)
    return total if upload.is_finished else f"{upload.offset_bytes * 100 // upload.size_bytes} % of {total}"


def _print_sources(state: State, page: "list[Json]") -> None:
    from dagmaster.client.models.uploads import SourceObject
    from dagmaster.quantities import size_text

    columns: list[Column[SourceObject]] = [
        Column("size", lambda source: size_text(source.size_bytes), is_number=True, drop=2),
        Column("age", lambda source: ago(source.modified_at, state.client.now), is_number=True, drop=1),
        Column("object", lambda source: one_line(f"{source.container}/{source.blob}"), is_long=True),
    ]
    print_records(state, columns, SourceObject, page)
