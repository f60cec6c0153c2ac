"""Which kind of content a client wants: a page, or data."""

from starlette.requests import Request


def prefers_html(request: Request) -> bool:
    """Whether the client prefers a page. JSON is the default, also for `*/*` and if both have the same weight."""
    if request.method not in {"GET", "HEAD"}:
        return False
    weights = {"html": 0.0, "json": 0.0}
    for part in request.headers.get("accept", "").split(","):
        media_type, _, parameters = part.partition(";")
        kind = media_type.strip().lower().removeprefix("application/").removeprefix("text/")
        kind = {"xhtml+xml": "html", "geo+json": "json", "schema+json": "json", "problem+json": "json"}.get(kind, kind)
        if kind in weights:
            weights[kind] = max(weights[kind], _weight(parameters))
    return weights["html"] > weights["json"]


def _weight(parameters: str) -> float:
    """The value of `q`, which may follow other parameters; 1 without it."""
    values = {name.strip().lower(): value for name, _, value in (each.partition("=") for each in parameters.split(";"))}
    try:
        return float(values.get("q", 1.0))
    except ValueError:
        return 0.0
