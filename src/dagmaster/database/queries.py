"""Every SQL statement, by name, from the files under `sql/`.

A file holds statements, each beginning with `-- name: …` and its purpose, and parts that statements share, each
beginning with `-- part: …`. The line `-- use: …` inserts a part, also in another part. The files are read once.
"""

import re
from functools import cache
from importlib.resources import files

_OPENING = re.compile(r"^-- (name|part): (\w+)\s*$", re.MULTILINE)
_USE = re.compile(r"^-- use: (\w+)\s*$", re.MULTILINE)
_PARAMETER = re.compile(r"%\((\w+)\)s")


@cache
def all_queries() -> dict[str, str]:
    queries: dict[str, str] = {}
    parts: dict[str, str] = {}
    for file in sorted(files("dagmaster.database").joinpath("sql").iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        pieces = _OPENING.split(file.read_text(encoding="utf-8"))[1:]
        for kind, name, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            target = queries if kind == "name" else parts
            if name in target:
                raise RuntimeError(f"two statements are named {name}")
            target[name] = text.strip().rstrip(";")
    return {name: _with_parts(text, parts) for name, text in queries.items()}


def _with_parts(text: str, parts: dict[str, str]) -> str:
    return _USE.sub(lambda use: _with_parts(parts[use[1]], parts), text)


def query(name: str) -> str:
    return all_queries()[name]


def numbered(name: str) -> tuple[str, tuple[str, ...]]:
    """The statement with numbered parameters, as PREPARE needs them, and their names in that order."""
    names: dict[str, int] = {}
    text = _PARAMETER.sub(lambda match: f"${names.setdefault(match[1], len(names) + 1)}", query(name))
    return text, tuple(names)
