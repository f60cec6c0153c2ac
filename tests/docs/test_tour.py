"""The tour names files that exist and stay short enough to be read in one sitting."""

import re

from tests.docs.pages import ROOT

LONGEST = 1_210  # lines of all files together


def test_the_tour_has_seven_files_that_stay_short() -> None:
    page = ROOT / "docs" / "tour.md"
    rows = re.findall(r"^\| \d \| \[`[^`]+`\]\(([^)]+)\)", page.read_text(), re.MULTILINE)

    files = [(page.parent / row).resolve() for row in rows]

    assert len(files) == 7
    assert all(file.is_file() for file in files)
    assert sum(len(file.read_text().splitlines()) for file in files) <= LONGEST
