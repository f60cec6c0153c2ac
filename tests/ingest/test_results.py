"""What the command line reads from the result of a raster job."""

from typing import Any

import pytest

from dagmaster.ingest.results import RasterJobResult, warnings_of

WARNING = {"code": "raster.lost", "severity": "warn", "message": "data was lost", "stage": "processing"}


def test_only_warnings_of_the_processing_are_shown() -> None:
    tiles = {"count": 4, "places": ["a.tif", "b.tif", "c.tif", "d.tif"]}
    result = {"findings": [{**WARNING, "advice": "look", **tiles}, {**WARNING, "stage": "validation"}]}

    (warning,) = warnings_of(result)

    assert (warning.code, warning.advice) == ("raster.lost", "look")
    assert warning.message == "a.tif, b.tif, c.tif and 1 more: data was lost"


@pytest.mark.parametrize("changed", [{"stage": "export"}, {"severity": "note"}, {"stage": None}, {"severity": None}])
def test_findings_of_a_kind_that_only_another_release_knows_are_left_out(changed: dict[str, Any]) -> None:
    assert [each.code for each in warnings_of({"findings": [{**WARNING, **changed}, WARNING]})] == ["raster.lost"]


@pytest.mark.parametrize("result", [None, {}, {"findings": None}, []])
def test_a_job_without_a_result_has_no_warnings_and_one_cog(result: object) -> None:
    assert warnings_of(result) == []
    assert RasterJobResult.of(result).cog_count == 1
