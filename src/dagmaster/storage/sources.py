"""The sources that a job may read: blobs of a zone always; URLs, /vsi paths and local files only if they are allowed.

With URLs, paths and files, a submitter could read whatever the worker can reach, so each is disabled by default. A
submission of a platform can name only blobs, whatever the configuration says (`operations/assets/source`). GDAL never
gets a URL, because it would resolve the name of the host itself and follow redirects: the file at a URL is downloaded
(`storage/download`), and the copy is read.
"""

import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from dagmaster.errors import InvalidRequest, NotAllowed, Unavailable
from dagmaster.ip_addresses import is_metadata, is_public
from dagmaster.settings import Settings
from dagmaster.storage.location import Location, Zone
from dagmaster.storage.object_sources import ObjectSources, is_object_url, location_of

MAX_SOURCE_LENGTH = 4096

# File systems of GDAL that read objects of the stores for which the worker has credentials; none that reads URLs or
# archives, runs commands, reads standard input or keeps files in memory.
_VSI = re.compile(r"/vsi(az|adls|s3|gs)/(.+)")
_DEFAULT_LIMIT_BYTES = 50_000_000_000

HostLookup = Callable[[str], Iterable[str]]


class Blobs(Protocol):
    """The part of a storage that is needed to find a source."""

    objects: ObjectSources | None

    def gdal_path(self, location: Location) -> str: ...


class SourceOrigin(StrEnum):
    BLOB = "blob"
    HTTPS = "https"
    VSI = "vsi"
    LOCAL = "local"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class SourceRules:
    allow_local: bool = False
    allow_https: bool = False
    allow_vsi: bool = False
    allow_objects: bool = False
    limit_bytes: int = _DEFAULT_LIMIT_BYTES  # of a file that is downloaded

    @classmethod
    def of(cls, settings: Settings) -> "SourceRules":
        return cls(
            settings.allow_local_sources,
            settings.allow_https_sources,
            settings.allow_vsi_sources,
            settings.allow_object_sources,
            settings.max_download_mb * 1_000_000,
        )


BLOBS_ONLY = SourceRules()


@dataclass(frozen=True, slots=True)
class SourceFile:
    """`gdal_path` and `url` may contain a signature, so messages show `name`. A file with a `url` has no `gdal_path`:
    it must be downloaded."""

    kind: SourceOrigin
    gdal_path: str
    name: str
    location: Location | None = None
    url: str | None = None

    @property
    def is_remote(self) -> bool:
        return self.gdal_path.startswith("/vsi")

    def __repr__(self) -> str:
        return f"SourceFile({self.kind}, {self.name!r})"


def find_source(
    text: str,
    storage: Blobs,
    rules: SourceRules = BLOBS_ONLY,
    *,
    container: str | None = None,
    zone: Zone = Zone.BRONZE,
) -> SourceFile:
    """The source of a text: `container/blob` (with `container`, only the blob), an https, s3 or az URL, /vsi… or
    /a/path."""
    if not text or len(text) > MAX_SOURCE_LENGTH or not text.isprintable():
        raise InvalidRequest(
            "the source is empty, too long, or has characters that cannot be printed", code="source.invalid"
        )
    if text.startswith("/vsi"):
        return _vsi(text, rules)
    if text.startswith("/"):
        return _local(text, rules)
    if is_object_url(text):
        return _object(text, storage, rules)
    if "://" in text:
        return _https(text, rules)
    location = Location(zone, container, text) if container else Location.parse(text, zone)
    return SourceFile(SourceOrigin.BLOB, storage.gdal_path(location), location.name, location)


def _local(text: str, rules: SourceRules) -> SourceFile:
    if not rules.allow_local:
        raise _refused("local files", "ALLOW_LOCAL_SOURCES")
    return SourceFile(SourceOrigin.LOCAL, text, Path(text).name)


def _object(text: str, storage: Blobs, rules: SourceRules) -> SourceFile:
    if not rules.allow_objects or storage.objects is None:
        raise _refused("URLs of objects", "ALLOW_OBJECT_SOURCES")
    return SourceFile(SourceOrigin.OBJECT, storage.objects.gdal_path(text), location_of(text).name)


def _https(text: str, rules: SourceRules) -> SourceFile:
    """The address of the host is checked when the file is downloaded."""
    if not rules.allow_https:
        raise _refused("URLs", "ALLOW_HTTPS_SOURCES")
    host = web_host(text)
    return SourceFile(SourceOrigin.HTTPS, "", urlsplit(text).path.rpartition("/")[2] or host, url=text)


def web_host(url: str) -> str:
    """The host of an https URL without credentials."""
    try:
        parts = urlsplit(url)
        host, is_valid = parts.hostname or "", parts.scheme == "https" and "@" not in parts.netloc
    except ValueError:
        host, is_valid = "", False
    if not host or not is_valid:
        raise InvalidRequest(
            "the source is not an https URL", code="source.bad-address", hint="write https://host/path"
        )
    return host


def resolve(host: str, lookup: HostLookup | None = None, *, allow_private: bool = False) -> str:
    """An address of the host. All its addresses must be public, unless private ones are allowed; those of metadata
    services never are."""
    addresses = list((lookup or _addresses)(host))
    is_allowed = not any(map(is_metadata, addresses)) if allow_private else all(map(is_public, addresses))
    if not addresses or not is_allowed:
        raise NotAllowed(f"the host {host} of the source is not a public server", code="source.private")
    return addresses[0]


def _vsi(text: str, rules: SourceRules) -> SourceFile:
    if not rules.allow_vsi:
        raise _refused("/vsi paths", "ALLOW_VSI_SOURCES")
    matched = _VSI.fullmatch(text)
    if not matched:
        raise NotAllowed(
            "this kind of /vsi path is not supported",
            code="source.bad-vsi",
            hint="use vsiaz, vsiadls, vsis3 or vsigs; give a URL as https://…, and unpack an archive",
        )
    kind, path = matched.groups()
    name = path.partition("?")[0].rpartition("/")[2]
    return SourceFile(SourceOrigin.VSI, text, name or kind)


def _refused(noun: str, setting: str) -> NotAllowed:
    return NotAllowed(
        f"{noun} are not allowed as sources",
        code="source.not-allowed",
        hint=f"put the file into a container, or set {setting}=true for the worker",
    )


def _addresses(host: str) -> list[str]:
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"the host {host} of the source is unknown", code="source.unknown-host") from error
