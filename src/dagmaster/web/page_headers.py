"""Headers of HTML pages and of what they load: texts of users never run as scripts, and no other site shows the page.

Styles and scripts are files of this server. MapLibre runs its worker from a blob, and draws images from blobs.
"""

from typing import Final

UI: Final = "/ui"
POLICY: Final = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; worker-src 'self' blob:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; object-src 'none'"
)
PAGE_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


def page_headers(cache_control: str = "no-cache") -> dict[str, str]:
    """The headers of a page, or of a script or style. Files whose names contain their hash may be cached for long."""
    return {**PAGE_HEADERS, "Cache-Control": cache_control}


def is_of_ui(path: str) -> bool:
    return path == UI or path.startswith(f"{UI}/")
