"""The results of a raster job: where its files are, and where they are served."""

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
class ResultSummary:
    """The URLs are None if nothing was catalogued."""

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


def summarise(storage: "Storage", edition: Edition, result: dict[str, Any], maps_url: str | None) -> ResultSummary:
    """What storage contains now, including files from before a resume."""
    cogs = _siblings(storage, edition.cog("x"))
    items = sorted(
        stored.location.name.removesuffix(".json")
        for stored in _siblings(storage, edition.stac("x"))
        if stored.location.name != "collection.json"
    )
    mosaic = storage.location(edition.mosaic(), zone=Zone.SILVER)
    collection_url = _current(result.get("stac_url"), maps_url)
    return ResultSummary(
        dataset_id=edition.dataset,
        cogs=str(Path(storage.gdal_path(_silver(storage, edition.cog("x")))).parent),
        cog_count=len(cogs),
        cog_bytes=sum(cog.size_bytes for cog in cogs),
        mosaic=storage.gdal_path(mosaic) if storage.exists(mosaic) else None,
        collection_url=collection_url,
        item_url=f"{collection_url}/items/{items[0]}" if collection_url and items else None,
        tilejson_url=_current(result.get("tile_server_url"), maps_url),
        xyz_url=_current(result.get("xyz_url"), maps_url),
        viewer_url=_current(result.get("viewer_url"), maps_url),
    )


def is_complete(storage: "Storage", edition: Edition, result: dict[str, Any]) -> bool:
    """Whether storage still has all results of a completed job: objects may have been deleted since."""
    expected = [result.get("blob_path") or result.get("mosaic_blob"), edition.stac("collection.json")]
    has_all = all(storage.exists(_silver(storage, blob)) for blob in expected if blob)
    return has_all and len(_siblings(storage, edition.cog("x"))) >= (result.get("total_tiles") or 1)


def _silver(storage: "Storage", blob: str) -> Location:
    return storage.location(blob, zone=Zone.SILVER)


def _siblings(storage: "Storage", blob: str) -> list[Any]:
    """All objects in the folder of a blob."""
    location = _silver(storage, blob)
    return list(storage.list(Folder(location.zone, location.container, location.blob.rpartition("/")[0])))


def _current(url: str | None, maps_url: str | None) -> str | None:
    """A local URL with the present address of the map server: the platform may have been restarted since the job."""
    return rebased(url, maps_url) if url and maps_url else url


def preview_of(state: State, results: ResultSummary, target: Path, maps_url: str | None) -> Path | None:
    """Make a preview with the map server; print a note if that fails."""
    if maps_url is None or results.tilejson_url is None:
        state.note("no preview: no map server is running")
        return None
    try:
        make_preview(results.tilejson_url, target)
    except Unavailable as error:
        state.note(f"no preview: {error.message}")
    except OSError as error:
        state.note(f"no preview: {target} cannot be written: {error.strerror}")
    else:
        return target
    return None


def lines_of(results: ResultSummary) -> list[tuple[str, str]]:
    """A word and a path or URL each, in full, so that it can be copied."""
    size = f"{counted(results.cog_count, 'file')}, {size_text(results.cog_bytes)}"
    lines = [
        ("COGs", f"{results.cogs}  ({size})"),
        ("mosaic", results.mosaic),
        ("STAC", results.collection_url),
        ("item", results.item_url),
        ("tiles", results.xyz_url),
        ("viewer", results.viewer_url),
        ("preview", str(results.preview) if results.preview else None),
    ]
    return [(word, text) for word, text in lines if text]


def print_summary(state: State, results: ResultSummary) -> None:
    from rich.text import Text

    for word, text in lines_of(results):
        state.console.print(Text.assemble("  ", (f"{word:<9}", "bold"), neutral(text)), soft_wrap=True)
