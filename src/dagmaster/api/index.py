"""The pages for people: a list of all routes, and Swagger UI to try them. Both work offline. Anyone may read them: they
describe the software and contain no data.

/docs       the list, from the OpenAPI description; it loads no other files
/docs/try   Swagger UI; its files come from the package fastapi-offline, and are served from here
"""

import re
from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response

from dagmaster.access.permissions import Permission
from dagmaster.client.limits import PREFIX
from dagmaster.web.accept import prefers_html
from dagmaster.web.authentication import requires
from dagmaster.web.page_headers import UI

router = APIRouter(include_in_schema=False, dependencies=[requires(Permission.ANYONE)])

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
td { border-top: 1px solid #8884; padding: .3rem .6rem .3rem 0; vertical-align: top; }
td:first-child { width: 4rem; } td:nth-child(2) { width: 26rem; overflow-wrap: anywhere; }
p, code { overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } a { color: #8bf; } }
"""

# Swagger UI sets styles of elements, and has its icons in data URLs. Everything else comes from this server.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Paths are relative to this page, so that the page also works behind a proxy with a prefix.
_TRY_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Try the dagmaster API</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="assets/swagger-ui.css"></head>
<body><div id="swagger-ui"></div>
<noscript>This page needs JavaScript; <a href="../docs">the list of routes</a> does not.</noscript>
<script src="assets/swagger-ui-bundle.js"></script><script src="try.js"></script></body></html>
"""
_TRY_SCRIPT = """SwaggerUIBundle({
  url: "../openapi.json", dom_id: "#swagger-ui", deepLinking: true, tryItOutEnabled: true, docExpansion: "none",
  validatorUrl: null
});
"""


@router.get("/")
async def go_to_pages(request: Request) -> RedirectResponse:
    """Browsers go to the web UI, other clients to the list of routes."""
    is_browser = prefers_html(request)
    return RedirectResponse(f"{UI[1:]}/" if is_browser else "docs", headers={"Vary": "Accept"})


@router.get("/openapi.json")
async def show_description(request: Request) -> JSONResponse:
    return JSONResponse(request.app.openapi())


@router.get("/docs")
async def show_docs(request: Request) -> HTMLResponse:
    return HTMLResponse(page(request.app.openapi()))


@router.get("/docs/try")
async def show_try_page() -> HTMLResponse:
    return HTMLResponse(_TRY_PAGE, headers={"Content-Security-Policy": _POLICY})


@router.get("/docs/try.js")
async def show_try_script() -> Response:
    return Response(_TRY_SCRIPT, media_type="text/javascript")


@router.get("/docs/assets/{name}")
async def show_asset(name: Literal["swagger-ui.css", "swagger-ui-bundle.js"]) -> FileResponse:
    return FileResponse(str(files("fastapi_offline") / "static" / name))


def page(openapi: Mapping[str, Any]) -> str:
    info = openapi["info"]
    introduction = "".join(f"<p>{_code(escape(part))}</p>" for part in info["description"].split("\n\n"))
    tags = "".join(_section(openapi, tag) for tag in openapi["tags"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])} API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>{introduction}"
        '<p><a href="docs/try">Try it out</a>. Full description: <a href="openapi.json">openapi.json</a>, or '
        "docs/reference/api.md. Start with: "
        f'<a href="{PREFIX}/jobs">jobs</a>, <a href="{PREFIX}/workflows">workflows</a>, '
        f'<a href="{PREFIX}/health">health</a>.</p>{tags}</body></html>\n'
    )


def _code(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


def _section(openapi: Mapping[str, Any], tag: Mapping[str, str]) -> str:
    rows = "".join(_rows(openapi, tag["name"]))
    title = escape(tag["name"].capitalize())
    return f"<h2>{title}</h2><p>{escape(tag['description'])}.</p><table>{rows}</table>" if rows else ""


def _rows(openapi: Mapping[str, Any], tag: str) -> Iterator[str]:
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            if tag in operation["tags"]:
                description = " ".join(operation.get("description", "").split())
                yield (
                    f"<tr><td>{method.upper()}</td><td><code>{escape(path)}</code></td>"
                    f'<td title="{escape(description)}">{escape(operation["summary"])}</td></tr>'
                )
