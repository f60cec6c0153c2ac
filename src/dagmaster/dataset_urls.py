"""The URLs of datasets and searches on a map server. They are built without settings, so that clients can use this
module too; `addresses.py` adds the URLs of files, and parses URLs.

    {base}/stac/collections/{dataset_id}/items/{item_id}
    {base}/tiles/{dataset_id}/map, /preview.png, /WebMercatorQuad/tilejson.json, /tiles/WebMercatorQuad/{z}/{x}/{y}.png
    {base}/searches/{search_id}/info, /WebMercatorQuad/tilejson.json, /tiles/WebMercatorQuad/{z}/{x}/{y}.png
"""

from urllib.parse import quote, urlencode

SEARCHES, STAC, TILES = "/searches", "/stac", "/tiles"
FILES, MAPS = "/files", "/maps"
_OTHER_PATHS = ("/tileMatrixSets", "/colorMaps", "/colormaps", "/conformance", "/pages")
# The paths that the map server serves, with everything below them. Another server may forward requests for them.
MAP_PATHS = (MAPS, STAC, TILES, SEARCHES, FILES, *_OTHER_PATHS)
GRID = "WebMercatorQuad"


def is_map_path(path: str) -> bool:
    return path in MAP_PATHS or path.startswith(tuple(f"{prefix}/" for prefix in MAP_PATHS))


class DatasetUrls:
    """Builds URLs below one base. `query` are parameters that are added to them."""

    def __init__(self, base: str) -> None:
        self.base = base.rstrip("/")

    def catalog(self) -> str:
        return f"{self.base}{STAC}/"

    def collections(self) -> str:
        return f"{self.base}{STAC}/collections"

    def collection(self, dataset_id: str) -> str:
        return f"{self.collections()}/{_quoted(dataset_id)}"

    def items(self, dataset_id: str) -> str:
        return f"{self.collection(dataset_id)}/items"

    def item(self, dataset_id: str, item_id: str) -> str:
        return f"{self.items(dataset_id)}/{_quoted(item_id)}"

    def map(self, dataset_id: str, ordinal: int | None = None, **query: str) -> str:
        return f"{self._tiles(dataset_id)}/map{_version(ordinal, query)}"

    def preview(self, dataset_id: str, ordinal: int) -> str:
        return f"{self._tiles(dataset_id)}/preview.png{_version(ordinal, {})}"

    def tilejson(self, dataset_id: str, ordinal: int | None = None, **query: str) -> str:
        return f"{self._tiles(dataset_id)}/{GRID}/tilejson.json{_version(ordinal, query)}"

    def xyz(self, dataset_id: str, query: str, *, suffix: str = ".png", grid: str = GRID) -> str:
        """A template: {z}, {x} and {y} stay in it for the client to fill in."""
        return f"{self._tiles(dataset_id)}/tiles/{grid}/{{z}}/{{x}}/{{y}}{suffix}?{query}"

    def search_info(self, search_id: str) -> str:
        return f"{self.base}{SEARCHES}/{search_id}/info"

    def search_tilejson(self, search_id: str) -> str:
        return f"{self.base}{SEARCHES}/{search_id}/{GRID}/tilejson.json"

    def search_xyz(self, search_id: str, query: str, *, suffix: str = "", grid: str = GRID) -> str:
        """A template, like `xyz`."""
        return f"{self.base}{SEARCHES}/{search_id}/tiles/{grid}/{{z}}/{{x}}/{{y}}{suffix}?{query}"

    def is_of_dataset(self, url: str, dataset_id: str) -> bool:
        """Whether a URL is that of a collection, of something in it, or of its tiles, below this base."""
        path = url.partition("?")[0]
        return f"{path}/".startswith((f"{self.collection(dataset_id)}/", f"{self._tiles(dataset_id)}/"))

    def _tiles(self, dataset_id: str) -> str:
        return f"{self.base}{TILES}/{_quoted(dataset_id)}"


def _version(ordinal: int | None, query: dict[str, str]) -> str:
    version = {} if ordinal is None else {"version": str(ordinal)}
    encoded = urlencode({**version, **query})
    return f"?{encoded}" if encoded else ""


def _quoted(name: str) -> str:
    return quote(name, safe="")
