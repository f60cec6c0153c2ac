"""The results of a raster job, printed."""

from pathlib import Path

from dagmaster.cli.command import State
from dagmaster.cli.validation import print_finding
from dagmaster.client.escaping import escaped
from dagmaster.errors import Unavailable
from dagmaster.ingest.preview import make_preview
from dagmaster.ingest.results import ResultSummary, warnings_of
from dagmaster.quantities import counted, size_text


def preview_of(state: State, results: ResultSummary, target: Path, maps_url: str | None) -> Path | None:
    """Make a preview with the map server; print a note if that fails."""
    if maps_url is None or results.urls.tilejson is None:
        is_local = results.cogs is not None
        state.note(
            "no preview: no map server is running"
            if is_local
            else "no preview: PUBLIC_URL, the address of the platform's map server, is not set"
        )
        return None
    try:
        make_preview(results.urls.tilejson, target)
    except Unavailable as error:
        state.note(f"no preview: {error.message}")
    except OSError as error:
        state.note(f"no preview: {target} cannot be written: {error.strerror}")
    else:
        return target
    return None


def print_summary(state: State, results: ResultSummary, *, is_stopping: bool = False) -> None:
    """Print the files and the URLs; with `is_stopping`, note that the URLs work only while the platform runs."""
    count = counted(results.cog_count, "file")
    size = f"{count}, {size_text(results.cog_bytes)}" if results.cog_bytes is not None else count
    files = {
        "COGs": f"{results.cogs}  ({size})" if results.cogs else f"{size} on the platform",
        "mosaic": results.mosaic,
        "preview": str(results.preview) if results.preview else None,
    }
    urls = {
        "STAC": results.urls.collection,
        "item": results.urls.item,
        "tiles": results.urls.xyz,
        "viewer": results.urls.viewer,
    }
    _print_lines(state, files)
    if is_stopping and any(urls.values()):
        state.say("  the platform stops now; these addresses work only while it runs:")
    _print_lines(state, urls)


def print_warnings(state: State, result: object) -> None:
    """Print warnings that only the job can find, because it reads every pixel. `result` is the job's, if known."""
    for warning in warnings_of(result):
        print_finding(state, warning, warning.message)


def _print_lines(state: State, lines: dict[str, str | None]) -> None:
    """Print names with their paths or URLs, which are not shortened, so that they can be copied."""
    from rich.text import Text

    for word, text in lines.items():
        if text:
            state.console.print(Text.assemble("  ", (f"{word:<9}", "bold"), escaped(text)), soft_wrap=True)
