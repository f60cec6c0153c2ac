"""The guides "Review and publish" and "Add a platform" can be followed on a platform."""

import re
from pathlib import Path
from typing import get_args

import pytest

from dagmaster.client.models.assets import SubmissionOutcomeName, SubmissionStatus
from dagmaster.raster.landscape import make_landscape
from tests.assets.platforms import SHIPPED
from tests.docs.pages import ROOT
from tests.docs.terminal import follow

REVIEW = ROOT / "docs/guides/review-and-publish.md"
PLATFORM = ROOT / "docs/guides/add-a-platform.md"

pytestmark = pytest.mark.requirement("M3")


@pytest.fixture
def in_a_folder_with_a_scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_landscape(tmp_path / "scene.tif", 512)
    monkeypatch.chdir(tmp_path)


@pytest.mark.timeout(300)  # three rasters are processed
@pytest.mark.usefixtures("in_a_folder_with_a_scene")
def test_the_guide_to_review_can_be_followed(variables: dict[str, str]) -> None:
    follow(REVIEW, variables)


def test_the_guide_to_platforms_can_be_followed(variables: dict[str, str]) -> None:
    bronze = Path(variables["DAGMASTER_DATA"], "storage/bronze/bronze")
    bronze.mkdir(parents=True, exist_ok=True)
    make_landscape(bronze / "scene.tif", 512)

    follow(PLATFORM, variables)


def _first_cells(text: str) -> set[str]:
    return set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE))


def test_every_outcome_of_a_submission_is_listed() -> None:
    section = REVIEW.read_text().partition("## A new revision")[2].partition("## A new version")[0]

    assert _first_cells(section) == set(get_args(SubmissionOutcomeName))


def test_every_status_and_every_shipped_platform_is_listed() -> None:
    text = PLATFORM.read_text()
    statuses = set(get_args(SubmissionStatus.model_fields["status"].annotation))

    assert _first_cells(text.partition("## Follow a submission")[2]) == statuses
    assert _first_cells(text.partition("## Add it")[0]) == {platform.platform_id for platform in SHIPPED}
