"""`dagmaster local`: list and remove the data of local platforms."""

from typing import TYPE_CHECKING, Any

import click

from dagmaster.cli.command import Group, State, pass_state, yes_option
from dagmaster.cli.tables import Column, print_table
from dagmaster.errors import InvalidRequest
from dagmaster.quantities import counted, size_text

if TYPE_CHECKING:
    from dagmaster.local.data import LocalData


@click.group(cls=Group)
def local() -> None:
    """List and remove the data of `up`, `process` and `demo` on this machine."""


@local.command("ls")
@pass_state
def list_data(state: State) -> None:
    """List data folders and databases, with their sizes, and whether a platform runs on them."""
    from dagmaster.local.data import local_data

    data = local_data()
    if state.json:
        state.emit({"local": [_public(each) for each in data]})
        return
    if not data:
        state.note("no local data")
        return
    print_table(state.console, _COLUMNS, data)
    state.note("remove one with: dagmaster local rm ID (or its data folder)")


@local.command("rm")
@click.argument("names", metavar="[ID|FOLDER]...", nargs=-1)
@click.option("--orphaned", is_flag=True, help="Remove all databases whose data folder no longer exists")
@yes_option
@pass_state
def remove_data(state: State, names: tuple[str, ...], orphaned: bool, yes: bool) -> int:
    """Remove a database, and what platforms have put into its data folder: zones, previews, temporary files.

    Other files in the folder are kept, and so are zones elsewhere (STORAGE_FOLDER and similar settings). Refused while
    a platform uses the folder. Data that root has created can only be removed as root.
    """
    from dagmaster.local.data import find_local_data, local_data, remove

    if not names and not orphaned:
        raise InvalidRequest("give an id or a data folder", code="usage", hint="see `dagmaster local ls`")
    data = {each.id: each for each in map(find_local_data, names)}
    if orphaned:
        data |= {each.id: each for each in local_data() if each.is_orphaned and not each.is_running}
    if not yes and not _is_confirmed(state, list(data.values())):
        return 1
    freed_bytes = sum(remove(each) for each in data.values())
    state.print_result(
        {"removed": sorted(data), "freed_bytes": freed_bytes},
        f"removed {counted(len(data), 'database')} with {'its' if len(data) == 1 else 'their'} files, "
        f"{size_text(freed_bytes)}",
    )
    return 0


def _is_confirmed(state: State, data: "list[LocalData]") -> bool:
    sizes = [size_text((each.database_bytes or 0) + (each.folder_bytes or 0)) for each in data]
    folders = [each.folder or "data folder unknown" for each in data]
    lines = [f"{each.id}  {size}  {folder}" for each, size, folder in zip(data, sizes, folders, strict=True)]

    def show() -> None:
        for line in lines:
            state.say(line)

    return state.confirm("Delete this data?", show)


def _folder(data: "LocalData") -> str:
    missing = " (deleted)" if data.folder and data.is_orphaned else ""
    return f"{data.folder or 'unknown'}{missing}"


def _state(data: "LocalData") -> str:
    if data.is_running:
        return f"running ({data.pid})" if data.pid else "running"
    return "orphaned" if data.is_orphaned else "stopped"


def _size(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else size_text(size_bytes)


def _public(data: "LocalData") -> dict[str, Any]:
    return {
        "id": data.id,
        "data_folder": str(data.folder) if data.folder else None,
        "database_folder": str(data.cluster.folder),
        "state": _state(data).partition(" ")[0],
        "pid": data.pid,
        "owner": data.owner,
        "database_bytes": data.database_bytes,
        "files_bytes": data.folder_bytes,
    }


_COLUMNS: "list[Column[LocalData]]" = [
    Column("id", lambda data: data.id),
    Column("state", _state),
    Column("database", lambda data: _size(data.database_bytes), is_number=True),
    Column("files", lambda data: _size(data.folder_bytes) if data.folder else "", is_number=True),
    Column("owner", lambda data: data.owner, drop=1),
    Column("data folder", _folder, is_below=True),
]
