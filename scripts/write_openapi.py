"""Write the description of the API to a file; the types of the web pages are generated from it."""

import sys
from pathlib import Path

import orjson

from dagmaster.api.app import create_app
from dagmaster.handlers.registry import installed
from dagmaster.library.workflows import load_library
from dagmaster.settings import Settings


def main() -> None:
    settings, registry = Settings(), installed()
    library = load_library(settings, registry, settings.known_queues)
    app = create_app(settings, "postgresql://", library, registry)
    Path(sys.argv[1]).write_bytes(orjson.dumps(app.openapi(), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))


if __name__ == "__main__":
    main()
