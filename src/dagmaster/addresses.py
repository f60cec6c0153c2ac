"""The URLs of what the platform serves. They are built here and parsed here, and nowhere else.

    {base}/files/{zone}/{container}/{blob}
    {base}/stac/collections/{dataset_id}/items/{item_id}
    {base}/tiles/{dataset_id}/map, /preview.png, /WebMercatorQuad/tilejson.json, /tiles/WebMercatorQuad/{z}/{x}/{y}.png

`base` is where the server is reached: the setting `public_url` in stored documents,
the URL of the request in responses.
"""

import re
from urllib.parse import quote, unquote, urlsplit

from dagmaster.errors import InvalidRequest
from dagmaster.settings import Settings
from dagmaster.storage.location import Location, Zone

FILES, STAC, TILES = "/files", "/stac", "/tiles"
GRID = "WebMercatorQuad"
SERVED_ZONES = (Zone.SILVER, Zone.EXTERNAL)

_SERVED = re.compile(
    r"https?://(?P<host>\[[0-9a-f:]+\]|[^/:@?#]+)(?::\d+)?/(?=files/(?:silver|external)/|tiles/|stac(?:/|$))"
)
_LOOPBACK = re.compile(r"localhost|127(?:\.\d{1,3}){3}|\[::1\]")


class Addresses:
    """Builds URLs below one base."""

    def __init__(self, base: str) -> None:
        self.base = base.rstrip("/")

    @classmethod
    def of(cls, settings: Settings) -> "Addresses":
        return cls(settings.public_url or f"http://localhost:{settings.serving_port}")

    def file(self, location: Location) -> str:
        if location.zone not in SERVED_ZONES:
            raise InvalidRequest("raw data is not served", code="storage.not-served")
        return f"{self.base}{FILES}/{location.zone}/{location.container}/{quote(location.blob)}"

    def catalog(self) -> str:
        return f"{self.base}{STAC}/"

    def collection(self, dataset_id: str) -> str:
        return f"{self.base}{STAC}/collections/{_quoted(dataset_id)}"

    def item(self, dataset_id: str, item_id: str) -> str:
        return f"{self.collection(dataset_id)}/items/{_quoted(item_id)}"

    def map(self, dataset_id: str, ordinal: int | None = None) -> str:
        return f"{self._tiles(dataset_id)}/map" + ("" if ordinal is None else f"?version={ordinal}")

    def preview(self, dataset_id: str, ordinal: int) -> str:
        return f"{self._tiles(dataset_id)}/preview.png?version={ordinal}"

    def tilejson(self, dataset_id: str, ordinal: int) -> str:
        return f"{self._tiles(dataset_id)}/{GRID}/tilejson.json?version={ordinal}"

    def xyz(self, dataset_id: str, query: str, *, suffix: str = ".png") -> str:
        """A template: {z}, {x} and {y} stay in it for the client to fill in."""
        return f"{self._tiles(dataset_id)}/tiles/{GRID}/{{z}}/{{x}}/{{y}}{suffix}?{query}"

    def _tiles(self, dataset_id: str) -> str:
        return f"{self.base}{TILES}/{_quoted(dataset_id)}"


def location_of(url: str) -> Location | None:
    """The location of the file that a URL serves, whatever the base of the URL;
    None if it serves no file of a served zone."""
    parts = urlsplit(url)
    _, _, path = parts.path.partition(f"{FILES}/")
    zone, _, name = unquote(path).partition("/")
    if parts.scheme not in {"http", "https"} or zone not in SERVED_ZONES:
        return None
    try:
        return Location.parse(name, Zone(zone))
    except InvalidRequest:
        return None


def rebased(url: str, base: str, own_host: str | None = None) -> str:
    """A stored URL below the base where the server is reached now, which may have another port than when it was stored.

    Only URLs of a loopback host or of `own_host` change: any other host is a public URL, or someone else's.
    """
    served = _SERVED.match(url)
    if served is None or not (_LOOPBACK.fullmatch(served["host"]) or served["host"].strip("[]") == own_host):
        return url
    return f"{base.rstrip('/')}/{url[served.end() :]}"


def _quoted(name: str) -> str:
    return quote(name, safe="")
