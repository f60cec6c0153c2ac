"""Which URLs a job may name for its callbacks.

The URL is checked as it is written, in every notation of an address that clients accept (decimal, octal, hexadecimal,
short, IPv6 with an embedded IPv4 address). Names are not resolved here: the process that calls a URL must check the
address that it connects to.
"""

import re
from urllib.parse import urlsplit

from dagmaster.errors import InvalidRequest
from dagmaster.ip_addresses import address_in, is_metadata, is_public

PORTS = (443, 8443)
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\.?", re.ASCII)
_METADATA_HOSTS = frozenset({"metadata", "metadata.google.internal", "instance-data"})
_HINT = "ALLOW_PRIVATE_WEBHOOKS=true allows http, other ports and private addresses"


def check_callback_url(url: str, *, allow_private: bool, field: str = "callback_url") -> None:
    """Refuse a URL that is not an absolute https URL, or that names an address which callbacks must not reach.

    With `allow_private`, http, any port and private addresses are allowed too. `field` is the name of the
    URL in the request.
    """
    try:
        _check(url, allow_private=allow_private)
    except _RefusedUrl as refused:
        raise InvalidRequest(
            f"{field} is refused: {refused}", code="submission.callback-url", hint=refused.hint
        ) from None


class _RefusedUrl(Exception):
    def __init__(self, problem: str, hint: str | None) -> None:
        super().__init__(problem)
        self.hint = hint


def _check(url: str, *, allow_private: bool) -> None:
    if not url.isascii() or any(character <= " " or character in '\\\x7f"<>^`{|}' for character in url):
        raise _refusal("it has characters that must be percent-encoded")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _refusal("its host or port is invalid") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise _refusal("it is not an absolute http or https URL")
    if "@" in parts.netloc:
        raise _refusal("it contains a user name or a password")
    if port == 0:
        raise _refusal("its port is invalid")
    if parts.scheme != "https" and not allow_private:
        raise _refusal("it is not an https URL", _HINT)
    if port not in (None, *PORTS) and not allow_private:
        raise _refusal(f"its port is not one of {', '.join(map(str, PORTS))}", _HINT)
    _check_host(host, is_bracketed=parts.netloc.startswith("["), allow_private=allow_private)


def _check_host(host: str, *, is_bracketed: bool, allow_private: bool) -> None:
    if not is_bracketed and not _HOST.fullmatch(host):
        raise _refusal("its host is not a host name or an address")
    name, address = host.rstrip("."), address_in(host)
    if is_bracketed and address is None:
        raise _refusal("its host is not a host name or an address")
    if name in _METADATA_HOSTS or (address and is_metadata(address)):
        raise _refusal("link-local and metadata addresses are not allowed")
    is_loopback_name = name == "localhost" or name.endswith(".localhost")
    is_private = is_loopback_name or (address is not None and not is_public(address))
    if is_private and not allow_private:
        raise _refusal("its address is not public", _HINT)


def _refusal(problem: str, hint: str | None = None) -> _RefusedUrl:
    return _RefusedUrl(problem, hint)
