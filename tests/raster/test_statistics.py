"""Statistics agree with GDAL's and numpy's, however the pixels are distributed."""

import json
import random

import numpy as np
import pytest
from affine import Affine
from rasterio.shutil import copy
from rasterio.windows import Window

from dagmaster.errors import Unavailable, UnfitData
from dagmaster.raster.analysis import statistics
from dagmaster.raster.analysis.statistics import (
    BandStatistics,
    Partial,
    band_statistics,
    combine,
    measure,
    merge,
    owned,
    partial_of,
    summarize,
)
from tests.raster.scenes import NORTH_UP, gdalinfo_statistics, smooth, write

pytestmark = pytest.mark.requirement("R7")

KEYS = {
    "STATISTICS_MINIMUM": "minimum",
    "STATISTICS_MAXIMUM": "maximum",
    "STATISTICS_MEAN": "mean",
    "STATISTICS_STDDEV": "stddev",
    "STATISTICS_VALID_PERCENT": "valid_percent",
}


def agrees(ours, theirs, *, rel=1e-6):
    for key, name in KEYS.items():
        slack = 0.01 if name == "valid_percent" else 0  # GDAL prints it with four digits
        assert getattr(ours, name) == pytest.approx(float(theirs[key]), rel=rel, abs=max(slack, 1e-9)), name


def values(kind):
    hills = smooth(300, 400)
    match kind:
        case "uint8":
            return (hills * 255).astype("uint8")
        case "uint16":
            return (hills * 65535).astype("uint16")
        case "int16":
            return (hills * 9000 - 4000).astype("int16")
        case _:
            return (hills * 300 + 800).astype(kind)


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16", "int32", "float32", "float64"])
def test_exact_statistics_equal_those_of_gdalinfo(tmp_path, kind):
    data = values(kind)
    data[:40, :] = data.flat[0]
    path = write(tmp_path / "a.tif", np.stack([data, data[::-1]]), nodata=float(data.flat[0]))

    ours = band_statistics([(path, None)], exact=True)

    for one, theirs in zip(ours, gdalinfo_statistics(path), strict=True):
        agrees(one, theirs)


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16"])
def test_percentiles_and_histogram_of_whole_numbers_equal_numpys(tmp_path, kind):
    data = values(kind)
    path = write(tmp_path / "a.tif", data)

    [ours] = band_statistics([(path, None)], exact=True, buckets=50)

    assert list(ours.percentiles.values()) == pytest.approx(np.percentile(data, [2, 25, 50, 75, 98]), rel=1e-12)
    assert list(ours.histogram.buckets) == np.histogram(data, 50, (data.min(), data.max()))[0].tolist()
    assert sum(ours.histogram.buckets) == ours.count == data.size


def test_percentiles_of_real_numbers_are_within_a_bin(tmp_path):
    data = np.random.default_rng(3).gamma(2, 40, (300, 400)).astype("float32")
    path = write(tmp_path / "a.tif", data)

    [ours] = band_statistics([(path, None)], exact=True)

    bin_width = 2 * (float(data.max()) - float(data.min())) / statistics.BINS
    assert list(ours.percentiles.values()) == pytest.approx(np.percentile(data, [2, 25, 50, 75, 98]), abs=bin_width)
    assert list(ours.histogram.buckets) == pytest.approx(np.histogram(data, 64, (data.min(), data.max()))[0], abs=10)


def test_overlapping_tiles_count_shared_ground_once(tmp_path):
    data = (smooth(300, 500) * 255).astype("uint8")
    left = write(tmp_path / "left.tif", data[:, :280])
    right = write(tmp_path / "right.tif", data[:, 220:], transform=NORTH_UP @ Affine.translation(220, 0))

    [ours] = band_statistics([(left, (0, 0, 250, 300)), (right, Window(30, 0, 250, 300))], exact=True)

    assert ours.count == data.size
    agrees(ours, gdalinfo_statistics(left, right)[0])


def test_every_pixel_of_a_tiled_grid_has_one_owner():
    """Also at the edge, where tiles are smaller, and across a gap."""
    windows = [
        (column, row, width, height)
        for column, width in ((0, 100), (80, 100), (160, 30), (300, 50))
        for row, height in ((0, 90), (70, 60))
    ]
    seen = np.zeros((130, 350), dtype=int)

    for (column, row, _, _), (left, top, width, height) in zip(windows, owned(windows), strict=True):
        seen[row + top : row + top + height, column + left : column + left + width] += 1

    assert seen[:, :190].min() == seen[:, :190].max() == 1
    assert seen[:, 190:300].max() == 0
    assert seen[:, 300:].min() == seen[:, 300:].max() == 1


def test_a_mask_holds_in_the_overviews_of_a_cog(tmp_path):
    data = (smooth(1024, 1024) * 255).astype("uint8")
    seen = np.ones((1024, 1024), bool)
    seen[:512, :512] = False
    data[~seen] = 255
    plain = write(tmp_path / "plain.tif", np.stack([data] * 3), mask=seen)
    copy(plain, tmp_path / "cog.tif", driver="COG", compress="JPEG", blocksize=128, overviews="AUTO")

    for band in band_statistics([(tmp_path / "cog.tif", None)], overview_level=1):
        assert band.valid_percent == pytest.approx(75, abs=0.5)
        assert band.mean == pytest.approx(data[seen].mean(), abs=1)


def test_statistics_from_overviews_are_near(tmp_path):
    data = (smooth(1024, 1024) * 60000).astype("uint16")
    data[:256, :256] = 65535
    path = write(tmp_path / "a.tif", data, nodata=65535, overviews=(2, 4, 8))

    [ours] = band_statistics([(path, None)], overview_level=2)
    [exact] = band_statistics([(path, None)], exact=True)

    assert ours.mean == pytest.approx(exact.mean, rel=0.01)
    assert ours.stddev == pytest.approx(exact.stddev, rel=0.02)
    assert ours.count == exact.count == 1024 * 1024 - 256 * 256
    assert ours.valid_percent == exact.valid_percent
    assert ours.percentiles[2] == pytest.approx(exact.percentiles[2], rel=0.05)
    assert exact.minimum <= ours.minimum <= ours.maximum <= exact.maximum
    assert (ours.minimum, ours.mean) != (exact.minimum, exact.mean)  # it was the overview that was read


def test_small_tiles_without_that_overview_weigh_as_much(tmp_path):
    """A tile at the edge has fewer overviews than its neighbour: each of its pixels counts for fewer."""
    large = write(tmp_path / "large.tif", np.full((512, 512), 10, "uint8"), overviews=(2, 4, 8))
    small = write(tmp_path / "small.tif", np.full((512, 256), 70, "uint8"), overviews=(2,))
    bare = write(tmp_path / "bare.tif", np.full((128, 128), 90, "uint8"))

    [ours] = band_statistics([(large, None), (small, None), (bare, None)])

    counts = np.array([512 * 512, 512 * 256, 128 * 128])
    assert ours.count == counts.sum()
    assert ours.mean == pytest.approx(np.average([10, 70, 90], weights=counts))


def test_windows_that_share_an_edge_share_no_pixel_of_an_overview(tmp_path):
    path = write(tmp_path / "a.tif", np.full((333, 517), 5, "uint8"), overviews=(2, 4, 8))

    parts = [(path, (0, 0, 203, 333)), (path, (203, 0, 314, 333))]
    [split], [whole] = band_statistics(parts), band_statistics([(path, None)])

    assert split.count == whole.count


def masked_scene(tmp_path, how):
    data = (smooth(200, 200) * 200 + 20).astype("float32" if how == "nan" else "uint8")
    hidden = np.zeros((200, 200), dtype=bool)
    hidden[50:120, 30:90] = True
    match how:
        case "nodata":
            data[hidden] = 0
            path = write(tmp_path / "a.tif", data, nodata=0)
        case "nan":
            data[hidden] = np.nan
            path = write(tmp_path / "a.tif", data)
        case "nan nodata":
            data = data.astype("float32")
            data[hidden] = np.nan
            path = write(tmp_path / "a.tif", data, nodata=float("nan"))
        case "mask":
            path = write(tmp_path / "a.tif", data, mask=~hidden)
        case "alpha":
            path = write(tmp_path / "a.tif", np.stack([data, np.where(hidden, 0, 255).astype("uint8")]), alpha=True)
        case "alpha beside nodata":
            path = write(
                tmp_path / "a.tif", np.stack([data, np.where(hidden, 0, 255).astype("uint8")]), alpha=True, nodata=255
            )
    return path, data[~hidden]


@pytest.mark.parametrize("how", ["nodata", "nan", "nan nodata", "mask", "alpha", "alpha beside nodata"])
def test_nodata_does_not_count(tmp_path, how):
    path, seen = masked_scene(tmp_path, how)

    ours = band_statistics([(path, None)], exact=True)[0]

    assert (ours.count, ours.minimum, ours.maximum) == (seen.size, seen.min(), seen.max())
    assert (ours.mean, ours.stddev) == pytest.approx((seen.mean(dtype="float64"), seen.std(dtype="float64")), rel=1e-9)
    assert ours.valid_percent == pytest.approx(100 * seen.size / 40_000)


@pytest.mark.parametrize("how", ["nodata", "nan nodata"])
def test_gdalinfo_agrees_on_nodata(tmp_path, how):
    """Only cases that GDAL 3.6 supports: its statistics ignore masks,
    and divide by all pixels if NaN is not declared."""
    path, _ = masked_scene(tmp_path, how)

    agrees(band_statistics([(path, None)], exact=True)[0], gdalinfo_statistics(path)[0])


def test_the_order_and_the_dealing_out_do_not_matter():
    rng = np.random.default_rng(5)
    for data in (
        rng.normal(1000, 50, 20_000).astype("float32"),
        rng.integers(0, 2**31, 9_000),
        np.r_[np.zeros(5000), rng.normal(0, 1e-6, 5000)],
    ):
        whole = partial_of(data)
        pieces = [partial_of(piece) for piece in np.array_split(data, 13)]
        random.Random(2).shuffle(pieces)
        merged = Partial(is_integer=data.dtype.kind == "i")
        for piece in pieces:
            merged = merge(merged, Partial.unpack(json.loads(json.dumps(piece.pack()))))

        assert (merged.scale, merged.first, merged.counts.tolist()) == (whole.scale, whole.first, whole.counts.tolist())
        assert (merged.mean, merged.squares) == pytest.approx((whole.mean, whole.squares), rel=1e-9)


def test_a_band_without_data_has_no_statistics(tmp_path):
    empty = write(tmp_path / "a.tif", np.zeros((100, 100), "uint8"), nodata=0)
    full = write(tmp_path / "b.tif", np.full((100, 100), 7, "uint8"), nodata=0)

    assert band_statistics([(empty, None)]) == (None,)
    [together] = band_statistics([(empty, None), (full, None)])
    assert (together.count, together.valid_percent, together.stddev) == (10_000, 50.0, 0.0)


def test_one_value_everywhere_still_has_a_histogram(tmp_path):
    path = write(tmp_path / "a.tif", np.full((100, 100), 7.5, "float32"))

    [ours] = band_statistics([(path, None)])

    assert ours.histogram.as_json() == {"count": 3, "min": 7.0, "max": 8.0, "buckets": [0, 10_000, 0]}
    assert set(ours.percentiles.values()) == {7.5}


def test_memory_stays_bounded_because_chunks_are_small(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tif", values("uint8"))
    monkeypatch.setattr(statistics, "CHUNK_PIXELS", 128 * 128)
    sizes = []
    read = statistics.read_with_validity
    monkeypatch.setattr(
        statistics, "read_with_validity", lambda d, b, w: sizes.append(w.width * w.height) or read(d, b, w)
    )

    [ours] = band_statistics([(path, (10, 20, 301, 200))], exact=True)

    assert max(sizes) <= 128 * 128
    assert ours.count == sum(sizes) == 301 * 200


def test_statistics_survive_json(tmp_path):
    [ours] = band_statistics([(write(tmp_path / "a.tif", values("float32")), None)])

    assert BandStatistics.from_json(json.loads(json.dumps(ours.as_json()))) == ours


def test_rasters_with_other_bands_do_not_mix(tmp_path):
    one = write(tmp_path / "a.tif", np.ones((2, 50, 50), "uint8"))
    other = write(tmp_path / "b.tif", np.ones((50, 50), "uint8"))

    with pytest.raises(UnfitData, match="number of bands"):
        combine([measure(one), measure(other)])


def test_an_unreadable_raster_is_named_without_its_folder(tmp_path):
    (tmp_path / "bad.tif").write_bytes(b"II*\0nothing")

    with pytest.raises(Unavailable) as refused:
        measure(tmp_path / "bad.tif")

    assert "bad.tif" in str(refused.value)
    assert str(tmp_path) not in str(refused.value)


def test_summaries_of_partials_are_those_of_the_whole():
    data = np.arange(1000, dtype="uint16")

    [ours] = summarize((merge(partial_of(data[:300]), partial_of(data[300:])),))

    assert ours.percentiles[50] == 499.5
    assert ours.stddev == pytest.approx(data.std())
