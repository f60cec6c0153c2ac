"""The index page: a list of all routes, from the OpenAPI description. It loads no other files, so it works offline."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse

from dagmaster.client.limits import PREFIX

router = APIRouter(include_in_schema=False)

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
td { border-top: 1px solid #8884; padding: .3rem .6rem .3rem 0; vertical-align: top; }
td:first-child { width: 4rem; } td:nth-child(2) { width: 26rem; overflow-wrap: anywhere; }
p, code { overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } a { color: #8bf; } }
"""


@router.get("/")
async def go_to_docs() -> RedirectResponse:
    return RedirectResponse("docs")


@router.get("/docs")
async def show_docs(request: Request) -> HTMLResponse:
    return HTMLResponse(page(request.app.openapi()))


def page(openapi: Mapping[str, Any]) -> str:
    info = openapi["info"]
    introduction = "".join(f"<p>{escape(part)}</p>" for part in info["description"].split("\n\n"))
    tags = "".join(_section(openapi, tag) for tag in openapi["tags"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])} API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>{introduction}"
        '<p>Full description: <a href="openapi.json">openapi.json</a>, or docs/reference/api.md. Start with: '
        f'<a href="{PREFIX}/jobs">jobs</a>, <a href="{PREFIX}/workflows">workflows</a>, '
        f'<a href="{PREFIX}/health">health</a>.</p>{tags}</body></html>\n'
    )


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
