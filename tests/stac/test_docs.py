"""The examples on the pages about mosaics and STAC have the results that are shown."""

import doctest
from pathlib import Path

import numpy as np
import pytest
from affine import Affine

from tests.raster.scenes import write

pytestmark = pytest.mark.requirement("C1")

PAGES = Path(__file__).parent.parent.parent / "docs" / "raster"


@pytest.mark.parametrize("page", ["mosaic.md", "stac.md"])
def test_the_examples_of_a_page_are_valid(page, tmp_path, monkeypatch):
    heights = (100 + np.arange(120_000).reshape(300, 400) // 400).astype("float32").astype("int16")
    write(tmp_path / "dem.tif", heights, transform=Affine(0.001, 0, 10, 0, -0.001, 50))
    monkeypatch.chdir(tmp_path)

    # doctest would take the closing fence of a code block as expected output.
    text = "\n".join("" if line.startswith("```") else line for line in (PAGES / page).read_text().splitlines())
    examples = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    messages: list[str] = []
    failed = doctest.DocTestRunner().run(examples, out=messages.append)

    assert failed.attempted > 5
    assert failed.failed == 0, "".join(messages)
