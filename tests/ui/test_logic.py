"""The logic of the pages, tested by vitest: formats, layout, timeline, forms, uploads."""

import re
import subprocess
from pathlib import Path

import pytest
from pydantic import BaseModel

from dagmaster.client.models.assets import ReasonRequest
from dagmaster.client.models.jobs import Intervention, JobPart

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_the_unit_tests_of_the_pages_pass() -> None:
    result = subprocess.run(["scripts/ui", "test"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert re.search(r"Tests.*\d+.*passed", result.stdout)


def test_the_pages_limit_texts_as_the_api_does() -> None:
    limits = re.findall(r"(\w+): (\d+)", (ROOT / "ui/src/limits.ts").read_text())

    accepted = {name: _max_length(JobPart, name) for name in JobPart.model_fields}
    accepted |= {"reason": _max_length(ReasonRequest, "reason"), "jobReason": _max_length(Intervention, "reason")}
    assert {name: int(limit) for name, limit in limits} == accepted


def _max_length(model: type[BaseModel], field: str) -> int:
    text, _null = model.model_json_schema()["properties"][field]["anyOf"]
    length: int = text["maxLength"]
    return length
