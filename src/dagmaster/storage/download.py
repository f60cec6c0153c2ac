"""Download a file from a web server, with the rules of a source: https, public servers, a limit on its size.

The name of the host is resolved once, and the connection goes to exactly the address that was checked. Each redirect is
checked in the same way.
"""

import os
import shutil
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx2

from dagmaster.errors import InvalidRequest, NotAllowed, NotFound, Unavailable
from dagmaster.storage.sources import HostLookup, resolve, web_host

_MAX_REDIRECTS = 5
_TIMEOUT = httpx2.Timeout(60.0, connect=10.0)
_CHUNK_BYTES = 2**20
_MAX_NAME_BYTES = 200
_PRIVATE_HINT = "for a server of your own network, use `dagmaster process` with ALLOW_PRIVATE_SOURCES=true"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

OnReceived = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class DownloadRules:
    limit_bytes: int
    allow_private: bool = False
    lookup: HostLookup | None = None


def file_name(url: str) -> str:
    """The name of the file at a URL, or that of the host if its path has none."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)).name or parts.hostname or "download"


def download(
    url: str, folder: Path, rules: DownloadRules, on_progress: OnReceived = lambda _done, _total: None
) -> Path:
    """Save the file at an https URL in a folder, with the time at which the server says it was changed."""
    # Proxies of the environment are not used: a proxy would resolve the name again.
    with (
        _translated(url),
        httpx2.Client(timeout=_TIMEOUT, trust_env=False, verify=ssl.create_default_context()) as http,
    ):
        for _ in range(_MAX_REDIRECTS + 1):
            with _response(http, url, rules) as response:
                if response.status_code not in _REDIRECTS:
                    return _saved(response, folder / _safe(file_name(url)), rules, on_progress)
                url = str(httpx2.URL(url).join(response.headers.get("location", "")))
    raise Unavailable(f"{_shown(url)} redirects more than {_MAX_REDIRECTS} times", code="source.redirects")


@contextmanager
def _response(http: httpx2.Client, url: str, rules: DownloadRules) -> Iterator[httpx2.Response]:
    host = web_host(url)
    address = resolve(host, rules.lookup, allow_private=rules.allow_private)
    parsed = httpx2.URL(url)
    headers = {"Host": parsed.netloc.decode("ascii"), "Accept-Encoding": "identity", "User-Agent": "dagmaster"}
    request = http.build_request("GET", parsed.copy_with(host=address), headers=headers)
    # The certificate is checked for the name, although the connection goes to an address.
    request.extensions["sni_hostname"] = host
    response = http.send(request, stream=True)
    try:
        yield response
    finally:
        response.close()


def _saved(response: httpx2.Response, target: Path, rules: DownloadRules, on_progress: OnReceived) -> Path:
    if response.status_code != HTTPStatus.OK:
        raise _refusal(response)
    size = response.headers.get("content-length", "")
    total_bytes = int(size) if size.isdigit() else None
    require_room(target.parent, total_bytes or 0, rules)
    done_bytes = 0
    with target.open("xb") as file:
        for chunk in response.iter_raw(_CHUNK_BYTES):
            done_bytes += len(chunk)
            if done_bytes > rules.limit_bytes:
                raise _too_large(rules)
            file.write(chunk)
            on_progress(done_bytes, total_bytes)
    _set_time(target, response.headers.get("last-modified"))
    return target


def _refusal(response: httpx2.Response) -> NotFound | NotAllowed | Unavailable:
    match response.status_code:
        case HTTPStatus.NOT_FOUND | HTTPStatus.GONE:
            return NotFound("the server has no such file", code="source.not-found")
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            hint = "download the file yourself, and submit it"
            return NotAllowed("the server denies access to the file", code="source.forbidden", hint=hint)
        case status:
            return Unavailable(f"the server responded with status {status}", code="source.refused", status=status)


def require_room(folder: Path, size_bytes: int, rules: DownloadRules) -> None:
    if size_bytes > rules.limit_bytes:
        raise _too_large(rules)
    if size_bytes > (free_bytes := shutil.disk_usage(folder).free):
        message = f"it has {size_bytes / 1e6:,.0f} MB, and {folder} has only {free_bytes / 1e6:,.0f} MB free"
        raise Unavailable(message, code="source.no-room")


def _too_large(rules: DownloadRules) -> InvalidRequest:
    return InvalidRequest(
        f"it is larger than {rules.limit_bytes / 1e6:,.0f} MB",
        code="source.too-large",
        hint="raise MAX_DOWNLOAD_MB, or download the file yourself, and submit it",
    )


def _set_time(file: Path, modified: str | None) -> None:
    try:
        seconds = parsedate_to_datetime(modified or "").timestamp()
    except (TypeError, ValueError):
        return
    os.utime(file, (seconds, seconds))


def _safe(name: str) -> str:
    """A name that fits into a folder; the storage decides later whether it suits a blob."""
    end = name.replace("\0", "").encode(errors="replace")[-_MAX_NAME_BYTES:]
    return end.decode(errors="ignore").strip(".") or "download"


def _shown(url: str) -> str:
    """The URL without its query, which may contain a signature."""
    return url.partition("?")[0]


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Add the URL to the messages of errors."""
    shown = _shown(url)
    try:
        yield
    except (InvalidRequest, NotAllowed, NotFound, Unavailable) as error:
        hint = _PRIVATE_HINT if error.code == "source.private" else error.hint
        raise type(error)(f"{shown}: {error.message}", code=error.code, hint=hint, **error.facts) from None
    except httpx2.HTTPError as error:
        raise Unavailable(
            f"{shown} cannot be downloaded: {error or type(error).__name__}",
            code="source.unreachable",
            hint="try again, or download the file yourself, and submit it",
        ) from None
    except httpx2.InvalidURL:
        raise InvalidRequest(f"{shown} is not a valid URL", code="source.bad-address") from None
