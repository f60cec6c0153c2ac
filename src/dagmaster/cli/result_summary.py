"""What a raster job made: where its files are, where it is served, and how that is told."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagmaster.addresses import rebased
from dagmaster.cli.command import State
from dagmaster.cli.preview import make_preview
from dagmaster.cli.printable import counted, size_text
from dagmaster.client.neutral import neutral
from dagmaster.errors import Unavailable
from dagmaster.storage.location import Edition, Folder, Location, Zone

if TYPE_CHECKING:
    from dagmaster.storage.zones import Storage


@dataclass(frozen=True, slots=True)
class Made:
    """`xyz_url` and its like are None where nothing was catalogued."""

    dataset_id: str
    cogs: str
    cog_count: int
    cog_bytes: int
    mosaic: str | None
    collection_url: str | None
    item_url: str | None
    tilejson_url: str | None
    xyz_url: str | None
    viewer_url: str | None
    preview: Path | None = None

    def public(self) -> dict[str, Any]:
        return {
            "dataset_id": self.dataset_id,
            "cogs": {"folder": self.cogs, "count": self.cog_count, "size_bytes": self.cog_bytes},
            "mosaic": self.mosaic,
            "stac_collection_url": self.collection_url,
            "stac_item_url": self.item_url,
            "tilejson_url": self.tilejson_url,
            "xyz_url": self.xyz_url,
            "viewer_url": self.viewer_url,
            "preview": str(self.preview) if self.preview else None,
        }


def what_was_made(storage: "Storage", edition: Edition, result: dict[str, Any], maps_url: str | None) -> Made:
    """What is there now, whoever made it: a job that was resumed found part of it."""
    cogs = _below(storage, edition.cog("x"))
    items = sorted(
        found.location.name.removesuffix(".json")
        for found in _below(storage, edition.stac("x"))
        if found.location.name != "collection.json"
    )
    mosaic = storage.location(edition.mosaic(), zone=Zone.SILVER)
    collection_url = _current(result.get("stac_url"), maps_url)
    return Made(
        dataset_id=edition.dataset,
        cogs=str(Path(storage.gdal_path(_silver(storage, edition.cog("x")))).parent),
        cog_count=len(cogs),
        cog_bytes=sum(found.size_bytes for found in cogs),
        mosaic=storage.gdal_path(mosaic) if storage.exists(mosaic) else None,
        collection_url=collection_url,
        item_url=f"{collection_url}/items/{items[0]}" if collection_url and items else None,
        tilejson_url=_current(result.get("tile_server_url"), maps_url),
        xyz_url=_current(result.get("xyz_url"), maps_url),
        viewer_url=_current(result.get("viewer_url"), maps_url),
    )


def is_still_there(storage: "Storage", edition: Edition, result: dict[str, Any]) -> bool:
    """Whether storage has what a finished job promised: the job outlives objects that someone removes."""
    promised = [result.get("blob_path") or result.get("mosaic_blob"), edition.stac("collection.json")]
    has_all = all(storage.exists(_silver(storage, blob)) for blob in promised if blob)
    return has_all and len(_below(storage, edition.cog("x"))) >= (result.get("total_tiles") or 1)


def _silver(storage: "Storage", blob: str) -> Location:
    return storage.location(blob, zone=Zone.SILVER)


def _below(storage: "Storage", blob: str) -> list[Any]:
    """Everything in the folder of a blob."""
    location = _silver(storage, blob)
    return list(storage.list(Folder(location.zone, location.container, location.blob.rpartition("/")[0])))


def _current(url: str | None, maps_url: str | None) -> str | None:
    """A URL on this machine with the port of today: the job may be older than the server that serves its results now."""
    return rebased(url, maps_url) if url and maps_url else url


def preview_of(state: State, made: Made, target: Path, maps_url: str | None) -> Path | None:
    """A picture through the map server; where there can't be one, a note says why."""
    if maps_url is None or made.tilejson_url is None:
        state.note("no preview: no maps are served here")
        return None
    try:
        make_preview(made.tilejson_url, target)
    except Unavailable as error:
        state.note(f"no preview: {error.message}")
    except OSError as error:
        state.note(f"no preview: {target} can't be written: {error.strerror}")
    else:
        return target
    return None


def lines_of(made: Made) -> list[tuple[str, str]]:
    """A word and a path or address each, whole, on a line of its own: to be copied."""
    size = f"{counted(made.cog_count, 'file')}, {size_text(made.cog_bytes)}"
    lines = [
        ("COGs", f"{made.cogs}  ({size})"),
        ("mosaic", made.mosaic),
        ("STAC", made.collection_url),
        ("item", made.item_url),
        ("tiles", made.xyz_url),
        ("viewer", made.viewer_url),
        ("preview", str(made.preview) if made.preview else None),
    ]
    return [(word, text) for word, text in lines if text]


def print_made(state: State, made: Made) -> None:
    from rich.text import Text

    for word, text in lines_of(made):
        state.console.print(Text.assemble("  ", (f"{word:<9}", "bold"), neutral(text)), soft_wrap=True)
