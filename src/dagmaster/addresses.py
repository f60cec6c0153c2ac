"""The URLs that the platform serves. They are built and parsed here and in `dataset_urls`, and nowhere else.

    {base}/files/{zone}/{container}/{blob}
    {base}/stac/…, /tiles/…, /searches/…      see `dataset_urls`

`base` is where the server is reached: the setting `public_url` in the results of jobs, the URL of the request in
responses. Stored documents have no base: their URLs are paths that begin with a slash.
"""

import re
from collections.abc import Iterable
from urllib.parse import quote, unquote, urlsplit

from dagmaster.dataset_urls import FILES, STAC, TILES, DatasetUrls
from dagmaster.errors import InvalidRequest
from dagmaster.settings import Settings
from dagmaster.storage.location import Location, Zone

SERVED_ZONES = (Zone.SILVER, Zone.EXTERNAL)

_SERVED = re.compile(
    r"(?:https?://(?P<host>\[[0-9a-f:]+\]|[^/:@?#]+)(?::\d+)?)?/(?=files/(?:silver|external)/|tiles/|stac(?:/|$))"
)
# Some parsers of URLs read backslashes as slashes, and ignore tabs and line breaks.
_NOT_PLAIN = re.compile(r"[\s\\\x00-\x1f\x7f]")
_NOT_PLAIN_DECODED = re.compile(r"[\\\x00-\x1f\x7f]|/vsi\w+[/?]", re.IGNORECASE)
_LOOPBACK = re.compile(r"localhost|127(?:\.\d{1,3}){3}|\[::1\]")


class Addresses(DatasetUrls):
    """Builds URLs below one base. `href_prefixes` are URLs of other servers whose files may be published."""

    def __init__(
        self,
        base: str,
        href_prefixes: Iterable[str] = (),
        *,
        public_base: str | None = None,
        external_base: str | None = None,
    ) -> None:
        """`public_base` is the base if other machines can reach it. `external_base` is the URL of the external zone,
        if the map server does not serve it."""
        super().__init__(base)
        self._href_prefixes = tuple(href_prefixes)
        self.public_base = public_base
        self.external_base = external_base

    @classmethod
    def of(cls, settings: Settings) -> "Addresses":
        base = settings.public_url or f"http://localhost:{settings.serving_port}"
        return cls(
            base,
            settings.stac_href_prefixes,
            public_base=settings.public_url,
            external_base=settings.external_url,
        )

    def stored(self) -> "Addresses":
        """The same builder without a base, for documents that are stored: the server adds the base of each request."""
        return Addresses("", self._href_prefixes)

    def file(self, location: Location) -> str:
        if location.zone not in SERVED_ZONES:
            raise InvalidRequest("raw data is not served", code="storage.not-served")
        return f"{self.base}{FILES}/{location.zone}/{location.container}/{quote(location.blob)}"

    def external(self, location: Location) -> str:
        """The public URL of an object in the external zone."""
        if self.external_base is None:
            return self.file(location)
        return f"{self.external_base}/{location.container}/{quote(location.blob)}"

    def is_file(self, url: str) -> bool:
        """Whether a URL is that of a file, below this base."""
        return url.startswith(f"{self.base}{FILES}/")

    def serves(self, href: str) -> bool:
        """Whether this is a URL or a path of this server: a file of a served zone, tiles or the catalogue.

        The port of a loopback host does not matter: responses replace the base of such a URL by that of the request.
        """
        path = href.removeprefix(f"{self.base}/") if self.base and href.startswith(f"{self.base}/") else None
        if path is None and (match := _SERVED.match(href)) and _is_own_host(match["host"]):
            path = href[match.end() :]
        if path is None or not is_plain(href):
            return False
        if path.startswith(FILES.removeprefix("/") + "/"):
            return location_of(f"/{path}") is not None
        return path.partition("/")[0].partition("?")[0] in {STAC.removeprefix("/"), TILES.removeprefix("/")}

    def allows(self, href: str) -> bool:
        """Whether a file may be published under this URL: this server serves it, or the settings allow it."""
        return self.serves(href) or (is_plain(href) and any(_is_below(href, prefix) for prefix in self._href_prefixes))


def is_plain(href: str) -> bool:
    """Whether all parsers read a URL in the same way: no `..`, encoded separators, backslashes or white space."""
    if _NOT_PLAIN.search(href):
        return False
    path = re.split(r"[?#]", href, maxsplit=1)[0]
    decoded = unquote(path)
    is_encoded_once = unquote(decoded) == decoded and decoded.count("/") == path.count("/")
    parts = decoded.split("/")
    return is_encoded_once and not _NOT_PLAIN_DECODED.search(decoded) and ".." not in parts and "." not in parts


def _is_below(href: str, prefix: str) -> bool:
    url, base = urlsplit(href), urlsplit(prefix)
    same_host = (url.scheme, url.netloc.lower()) == (base.scheme, base.netloc.lower())
    return same_host and f"{url.path}/".startswith(f"{base.path.rstrip('/')}/")


def location_of(url: str) -> Location | None:
    """The location of the file that a URL serves, whatever the base of the URL, or of the path of a stored document;
    None if it serves no file of a served zone."""
    parts = urlsplit(url)
    before, _, path = parts.path.partition(f"{FILES}/")
    zone, _, name = unquote(path).partition("/")
    is_path = url.startswith("/") and not parts.netloc and not before
    if not (is_path or parts.scheme in {"http", "https"}) or zone not in SERVED_ZONES:
        return None
    try:
        return Location.parse(name, Zone(zone))
    except InvalidRequest:
        return None


def rebased(url: str, base: str, own_host: str | None = None) -> str:
    """A stored URL below the base where the server is reached now, which may have another port than when it was stored.

    Only paths, and URLs of a loopback host or of `own_host`, change: a URL of any other host is public, or
    belongs to another server.
    """
    served = _SERVED.match(url)
    if served is None or not _is_own_host(served["host"], own_host):
        return url
    return f"{base.rstrip('/')}/{url[served.end() :]}"


def _is_own_host(host: str | None, own_host: str | None = None) -> bool:
    """Whether a URL with this host belongs to this server. A path, which has no host, does."""
    return host is None or bool(_LOOPBACK.fullmatch(host)) or host.strip("[]") == own_host
