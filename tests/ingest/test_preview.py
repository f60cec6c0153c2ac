"""A preview shows the finest zoom at which the dataset fits."""

import morecantile
import pytest

from dagmaster.errors import Unavailable
from dagmaster.ingest import preview


@pytest.mark.parametrize(("lon", "lat", "zoom"), [(9.5, 47.4, 9), (-179.9, -60, 3), (179.99, 84.9, 12)])
def test_a_position_lies_in_the_right_tile_of_the_grid(lon, lat, zoom):
    x, y = preview._position(lon, lat, zoom)

    assert (x // 256, y // 256) == morecantile.tms.get("WebMercatorQuad").tile(lon, lat, zoom)[:2]


@pytest.mark.parametrize(("longest", "zoom"), [(1024, 10), (300, 8), (100_000, 14), (10, 5)])
def test_the_preview_has_the_finest_zoom_that_fits(longest, zoom):
    tilejson = {"minzoom": 5, "maxzoom": 14, "bounds": [9.0, 47.0, 10.0, 47.5]}

    fitting, box = preview._fitting(tilejson, longest)

    assert fitting == zoom
    assert box[2] - box[0] == pytest.approx(256 * 2**zoom / 360, abs=2)


def test_a_dataset_that_is_too_large_for_a_preview_is_an_error():
    with pytest.raises(Unavailable, match="too large"):
        preview._fitting({"minzoom": 12, "maxzoom": 14, "bounds": [0.0, 40.0, 10.0, 50.0]}, 1024)
