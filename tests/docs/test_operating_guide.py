"""The guide "Operate a stuck job" can be followed on a platform, and lists every reason why a node waits."""

import re
from typing import get_args

from dagmaster.client.models.nodes import ReasonCode
from tests.docs.pages import ROOT
from tests.docs.terminal import follow

PAGE = ROOT / "docs/guides/operate-a-stuck-job.md"


def test_the_guide_can_be_followed(variables: dict[str, str]) -> None:
    follow(PAGE, variables)


def test_every_reason_is_listed_with_a_remedy() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert sorted(rows) == sorted(get_args(ReasonCode))
