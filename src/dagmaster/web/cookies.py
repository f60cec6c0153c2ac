"""Cookies of browsers: one for a session, and one for an unfinished sign-in at an OIDC issuer.

With https their names begin with `__Host-`: browsers then accept them from this host only, and not from its subdomains
or from plain http. Without https, which is for local use, they have plain names; cookies with plain names are not read
with https, because others could have set them. Cookies of a host are sent to all of its ports.
"""

from http.cookies import SimpleCookie
from typing import Final, Literal

from starlette.datastructures import Headers
from starlette.types import Scope

SESSION: Final = "dagmaster_session"
SIGN_IN: Final = "dagmaster_sign_in"
_ONLY_THIS_HOST: Final = "__Host-"
_MAX_HEADER_LENGTH: Final = 16_384


def has_session_cookie(headers: Headers) -> bool:
    return SESSION in headers.get("cookie", "")


def session_in(scope: Scope, headers: Headers) -> str | None:
    return cookie_in(SESSION, scope, headers)


def cookie_in(name: str, scope: Scope, headers: Headers) -> str | None:
    """The value of a cookie. If two cookies of this name differ, both are ignored: another site has set one of them."""
    values = _values(headers)
    candidates = values.get(f"{_ONLY_THIS_HOST}{name}", set())
    if not candidates and not is_https(scope):
        candidates = values.get(name, set())
    return next(iter(candidates)) if len(candidates) == 1 else None


def cookie(
    name: str, value: str, scope: Scope, *, seconds: int | None = None, same_site: Literal["strict", "lax"] = "strict"
) -> str:
    """The header `Set-Cookie`. Scripts cannot read the cookie. Without `seconds` it ends with the browser."""
    name = f"{_ONLY_THIS_HOST}{name}" if is_https(scope) else name
    morsel = SimpleCookie({name: value})[name]
    morsel["path"] = "/"
    morsel["httponly"] = True
    morsel["samesite"] = same_site.capitalize()
    if is_https(scope):
        morsel["secure"] = True
    if seconds is not None:
        morsel["max-age"] = seconds
    return morsel.OutputString()


def expired_cookie(name: str, scope: Scope) -> str:
    """The header `Set-Cookie` that removes a cookie."""
    return cookie(name, "", scope, seconds=0)


def is_https(scope: Scope) -> bool:
    """Whether the browser uses https; proxies say so if TRUSTED_PROXIES names them."""
    return bool(scope["scheme"] == "https")


def _values(headers: Headers) -> dict[str, set[str]]:
    values: dict[str, set[str]] = {}
    for header in headers.getlist("cookie"):
        for pair in header[:_MAX_HEADER_LENGTH].split(";"):
            name, _, value = pair.strip().partition("=")
            values.setdefault(name, set()).add(value.strip('"'))
    return values
