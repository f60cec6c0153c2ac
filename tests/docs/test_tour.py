"""The tour lists existing files that are short enough to be read in one sitting."""

import re

from tests.docs.pages import ROOT

MAX_LINES = 1_210  # total lines of all files


def test_the_tour_lists_seven_files_within_the_limit() -> None:
    page = ROOT / "docs" / "tour.md"
    rows = re.findall(r"^\| \d \| \[`[^`]+`\]\(([^)]+)\)", page.read_text(), re.MULTILINE)

    files = [(page.parent / row).resolve() for row in rows]

    assert len(files) == 7
    assert all(file.is_file() for file in files)
    assert sum(len(file.read_text().splitlines()) for file in files) <= MAX_LINES
