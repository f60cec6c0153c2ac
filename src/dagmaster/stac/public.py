"""Which URLs and texts may be published: no credentials, no signatures, no internal paths."""

import re
from urllib.parse import parse_qsl, urlsplit

from dagmaster.errors import InvalidRequest
from dagmaster.ip_addresses import address_in, is_public

# Parameters of Azure's SAS, of S3's and Google's signed URLs, and the usual names of keys.
SECRETS = frozenset(
    [
        "sig",
        "se",
        "sp",
        "sv",
        "sr",
        "st",
        "spr",
        "srt",
        "ss",
        "skoid",
        "sktid",
        "ske",
        "sks",
        "skt",
        "skv",
        "signature",
        "awsaccesskeyid",
        "googleaccessid",
        "expires",
        "policy",
        "key-pair-id",
        "token",
        "access_token",
        "api_key",
        "apikey",
        "key",
        "subscription-key",
        "code",
        "password",
        "secret",
    ]
)
_INTERNAL = re.compile(r"/vsi\w+[/?]|\bfile:/|\b(?:az|abfss?|adl|s3|gs|wasbs?)://", re.IGNORECASE)
_INTERNAL_DOMAINS = frozenset({"localhost", "local", "internal", "localdomain", "home", "lan", "intranet"})
_FOLDER = re.compile(r"(?:^|[\s'\"(=])(?:/(?:home|root|mnt|tmp|var|data|opt|srv|work|usr|Users)/|[A-Za-z]:\\)")
_SIGNED = re.compile(r"[?&](?:sig|x-amz-\w+|x-goog-\w+|access_token|api_key)=", re.IGNORECASE)
_USER = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/@]+:[^\s/@]+@", re.IGNORECASE)


def why_not_public(href: str) -> str | None:
    """Why a URL may not be published; None if it may. The reason does not repeat the URL, which may be secret."""
    try:
        address = urlsplit(href)
        names = {name.lower() for name, _ in parse_qsl(address.query, keep_blank_values=True)}
        user, host = address.username or address.password, address.hostname
    except ValueError:
        return "it is not a URL"
    if address.scheme not in ("http", "https") or not host:
        return "it is not an absolute http(s) URL"
    if user:
        return "it contains credentials"
    if names & SECRETS or any(name.startswith(("x-amz-", "x-goog-", "x-ms-")) for name in names):
        return "it is signed or contains a key"
    if _INTERNAL.search(href):
        return "it contains an internal path"
    if re.search(r"[\s<>\"\\^`|]", href):
        return "it contains characters that a URL cannot have"
    return None


def why_not_linked(href: str) -> str | None:
    """Why a document may not have this href; None if it is a public URL, or a path of the server of the document."""
    if not re.match(r"/(?!/)", href):
        return why_not_public(href)
    return "it is the path of a file" if _FOLDER.match(href) else why_not_public(f"https://localhost{href}")


def why_internal(href: str) -> str | None:
    """Why the host of a URL cannot be on the internet; None if it can. Names are not resolved."""
    host = (urlsplit(href).hostname or "").rstrip(".")
    if (address := address_in(host)) is not None:
        return None if is_public(address) else "its host is not on the internet"
    last = host.rpartition(".")[2]
    # A name cannot end in a number: a browser would read it as an address.
    if "." not in host or last in _INTERNAL_DOMAINS or last.isdigit() or last.startswith("0x"):
        return "its host is not on the internet"
    return None


def public(href: str) -> str:
    """The URL, if it may be published."""
    return _checked_href(href, why_not_public(href))


def linked(href: str) -> str:
    """The href, if a document may have it."""
    return _checked_href(href, why_not_linked(href))


def _checked_href(href: str, reason: str | None) -> str:
    if reason:
        raise InvalidRequest(
            f"a URL cannot be published: {reason}", code="stac.href-not-public", hint="pass the public URL"
        )
    return href


def leak_in(text: str) -> str | None:
    """What a text contains that must not be published; None if it may be published."""
    if _INTERNAL.search(text) or _FOLDER.search(text):
        return "an internal path"
    if _SIGNED.search(text):
        return "a signed URL"
    if _USER.search(text):
        return "credentials"
    return None
