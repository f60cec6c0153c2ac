"""The middleware of the map server: sets the public URL of requests, and the cache headers of responses.

Links begin with the URL of the request. If clients reach this server under another URL, PUBLIC_URL sets it. Headers of
proxies are ignored, except the client address and the scheme from proxies in TRUSTED_PROXIES (web/server.py).
"""

from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from dagmaster import listen
from dagmaster.errors import InvalidRequest, NotAllowed
from dagmaster.serving.access import AccessDecisions
from dagmaster.serving.caching import BY_DEFAULT, CREDENTIALS, cache_headers, is_private, not_modified_if_any
from dagmaster.serving.problems import PROBLEMS
from dagmaster.web.authentication import Authentication
from dagmaster.web.metrics import RequestMetrics
from dagmaster.web.middleware import RequestMiddleware
from dagmaster.web.origins import name_of

# A search may contain a polygon with many vertices.
MAX_BODY_BYTES = 1_048_576
_FORWARDED = (b"forwarded", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port", b"x-forwarded-prefix")


class MapMiddleware(RequestMiddleware):
    endpoint = listen.SERVING
    problems = PROBLEMS
    hint_when_foreign = "use localhost as the host name, or set PUBLIC_URL"

    def __init__(
        self,
        app: ASGIApp,
        *,
        own_host: str,
        public_url: str | None,
        is_open_to_all: bool,
        authentication: Authentication,
        access: AccessDecisions,
        refuses_other_sites: bool = True,
        metrics: RequestMetrics | None = None,
    ) -> None:
        self._access = access
        self._public = urlsplit(public_url) if public_url else None
        public_host = self._public.hostname if self._public else None
        own_hosts = [own_host, public_host] if public_host else [own_host]
        super().__init__(
            app,
            max_body_bytes=MAX_BODY_BYTES,
            own_hosts=own_hosts,
            is_open_to_all=is_open_to_all,
            authentication=authentication,
            refuses_other_sites=refuses_other_sites,
            metrics=metrics,
        )

    def refusal(self, scope: Scope, headers: Headers) -> InvalidRequest | None:
        """Metrics are for operators. Clients of the public URL, who come through a proxy, do not get them."""
        if scope["path"] == "/metrics" and self._is_public(headers.get("host", "")):
            hint = "use the address on which the map server listens"
            return NotAllowed("metrics are not served at the public URL", code="metrics.not-public", hint=hint)
        return super().refusal(scope, headers)

    def allows_foreign_images(self, _path: str) -> bool:
        return True  # notebooks show tiles

    def _is_public(self, host: str) -> bool:
        name = name_of(host)
        return self._public is not None and name == self._public.hostname and not listen.is_loopback(name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        with self._access.expecting(scope["path"], scope["query_string"].decode("latin-1")):
            await super().__call__(scope, receive, not_modified_if_any(scope, send))

    def change_scope(self, scope: Scope) -> None:
        _set_public_url(scope, self._public)

    def change_headers(self, scope: Scope, status: int, headers: MutableHeaders) -> None:
        # Files were uploaded by users: the browser must use the declared content type.
        headers["X-Content-Type-Options"] = "nosniff"
        if status in (200, 304):
            headers.update(cache_headers(scope))
        if is_private(headers.setdefault("Cache-Control", BY_DEFAULT)):
            headers.add_vary_header(CREDENTIALS)


def _set_public_url(scope: Scope, public: SplitResult | None) -> None:
    """Let links begin with the public URL, if there is one, and drop the headers of proxies."""
    headers = [(name, value) for name, value in scope["headers"] if name not in _FORWARDED]
    if public is not None:
        scope["scheme"] = public.scheme
        scope["root_path"] = public.path
        headers = [(name, value) for name, value in headers if name != b"host"]
        headers.append((b"host", public.netloc.encode()))
    scope["headers"] = headers
