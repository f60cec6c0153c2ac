"""Every SQL statement, by name, from the files under `sql/`.

A file holds statements, each opened by `-- name: …` and a line of purpose. They are read once; asking for a name that doesn't exist
fails at import of the module that asks.
"""

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


@cache
def all_queries() -> dict[str, str]:
    queries: dict[str, str] = {}
    for file in sorted(files("dagmaster.database").joinpath("sql").iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        parts = _NAME.split(file.read_text(encoding="utf-8"))[1:]
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            if name in queries:
                raise RuntimeError(f"two statements are named {name}")
            queries[name] = text.strip().rstrip(";")
    return queries


def query(name: str) -> str:
    return all_queries()[name]
