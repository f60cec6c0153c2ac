"""Statements, scripts and pages that no formatter wraps have lines of at most 120 characters."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, pages

MAX_WIDTH = 120
SOURCES = ROOT / "src" / "dagmaster"
SQL = SOURCES / "database" / "sql"
SCRIPTS = SOURCES / "serving" / "static"
REFERENCE = ROOT / "docs" / "reference"  # written from descriptions, a paragraph a line


def wide_lines(file: Path, lines: Iterator[tuple[int, str]]) -> list[str]:
    return [f"{file.relative_to(ROOT)}:{number}" for number, line in lines if len(line) > MAX_WIDTH]


def lines_of(file: Path) -> Iterator[tuple[int, str]]:
    return enumerate(file.read_text(encoding="utf-8").splitlines(), 1)


def is_checked_sql(file: Path, line: str) -> bool:
    """In the schema, only comments are checked: its fingerprint, stored in databases, depends on its lines of code."""
    return file.parent.name != "schema" or line.lstrip().startswith("--")


def prose_of(file: Path) -> Iterator[tuple[int, str]]:
    """The lines outside fenced blocks and tables."""
    is_fenced = False
    for number, line in lines_of(file):
        if line.lstrip().startswith("```"):
            is_fenced = not is_fenced
        elif not is_fenced and not line.lstrip().startswith("|"):
            yield number, line


@pytest.mark.parametrize("file", sorted(SQL.rglob("*.sql")), ids=lambda file: file.relative_to(SQL).as_posix())
def test_no_line_of_sql_is_too_wide(file: Path) -> None:
    lines = ((number, line) for number, line in lines_of(file) if is_checked_sql(file, line))

    assert wide_lines(file, lines) == []


@pytest.mark.parametrize("file", sorted(SCRIPTS.glob("*.js")), ids=lambda file: file.name)
def test_no_line_of_a_script_is_too_wide(file: Path) -> None:
    assert wide_lines(file, lines_of(file)) == []


@pytest.mark.parametrize(
    "file",
    [page for page in pages() if REFERENCE not in page.parents],
    ids=lambda file: file.relative_to(ROOT).as_posix(),
)
def test_no_line_of_prose_is_too_wide(file: Path) -> None:
    assert wide_lines(file, prose_of(file)) == []


def test_a_wide_line_is_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("\n".join(["# Page", "```", "x" * 121, "```", "| " + "x" * 121, "x" * 120, "x" * 121]))

    assert [number for number, line in prose_of(page) if len(line) > MAX_WIDTH] == [7]
