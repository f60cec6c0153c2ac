"""Statistics agree with GDAL's and numpy's, however the pixels are distributed."""

import functools
import json
import random
from dataclasses import fields
from fractions import Fraction

import numpy as np
import pytest
import rasterio
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
    partial_of,
    summarize,
)
from dagmaster.raster.cog.grid import output_grid
from dagmaster.raster.cog.profiles import profile_of
from dagmaster.raster.cog.write import make_cog
from dagmaster.raster.source.facts import RasterType, read_facts
from tests.raster.rasters import write_raster
from tests.raster.scenes import NORTH_UP, gdalinfo_statistics, smooth, write

pytestmark = pytest.mark.requirement("R7")

KEYS = {
    "STATISTICS_MINIMUM": "minimum",
    "STATISTICS_MAXIMUM": "maximum",
    "STATISTICS_MEAN": "mean",
    "STATISTICS_STDDEV": "stddev",
    "STATISTICS_VALID_PERCENT": "valid_percent",
}


def require_equal(ours, theirs, *, rel=1e-6):
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
        require_equal(one, theirs)


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16"])
def test_percentiles_and_histogram_of_integers_equal_those_of_numpy(tmp_path, kind):
    data = values(kind)
    path = write(tmp_path / "a.tif", data)

    [ours] = band_statistics([(path, None)], exact=True, buckets=50)

    assert list(ours.percentiles.values()) == pytest.approx(np.percentile(data, [2, 25, 50, 75, 98]), rel=1e-12)
    assert list(ours.histogram.buckets) == np.histogram(data, 50, (data.min(), data.max()))[0].tolist()
    assert sum(ours.histogram.buckets) == ours.count == data.size


def test_percentiles_of_floats_are_accurate_to_one_bin(tmp_path):
    data = np.random.default_rng(3).gamma(2, 40, (300, 400)).astype("float32")
    path = write(tmp_path / "a.tif", data)

    [ours] = band_statistics([(path, None)], exact=True)

    bin_width = 2 * (float(data.max()) - float(data.min())) / statistics.BINS
    assert list(ours.percentiles.values()) == pytest.approx(np.percentile(data, [2, 25, 50, 75, 98]), abs=bin_width)
    assert list(ours.histogram.buckets) == pytest.approx(np.histogram(data, 64, (data.min(), data.max()))[0], abs=10)


def test_pixels_that_tiles_share_are_counted_once(tmp_path):
    data = (smooth(300, 500) * 255).astype("uint8")
    left = write(tmp_path / "left.tif", data[:, :280])
    right = write(tmp_path / "right.tif", data[:, 220:], transform=NORTH_UP @ Affine.translation(220, 0))

    [ours] = band_statistics([(left, (0, 0, 250, 300)), (right, Window(30, 0, 250, 300))], exact=True)

    assert ours.count == data.size
    require_equal(ours, gdalinfo_statistics(left, right)[0])


def test_the_mask_is_used_in_overviews_of_a_cog(tmp_path):
    data = (smooth(1024, 1024) * 255).astype("uint8")
    seen = np.ones((1024, 1024), bool)
    seen[:512, :512] = False
    data[~seen] = 255
    plain = write(tmp_path / "plain.tif", np.stack([data] * 3), mask=seen)
    copy(plain, tmp_path / "cog.tif", driver="COG", compress="JPEG", blocksize=128, overviews="AUTO")

    bands = band_statistics([(tmp_path / "cog.tif", None)], overview_level=1)

    assert len(bands) == 3
    for band in bands:
        assert band.valid_percent == pytest.approx(75, abs=0.5)
        assert band.mean == pytest.approx(data[seen].mean(), abs=1)


def test_statistics_from_overviews_are_close_to_exact_ones(tmp_path):
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
    assert (ours.minimum, ours.mean) != (exact.minimum, exact.mean)  # the overview was read, not the full resolution


def test_tiles_without_the_overview_have_the_right_weight(tmp_path):
    """A tile at the edge has fewer overviews than its neighbour, so each pixel that is read stands for fewer pixels."""
    large = write(tmp_path / "large.tif", np.full((512, 512), 10, "uint8"), overviews=(2, 4, 8))
    small = write(tmp_path / "small.tif", np.full((512, 256), 70, "uint8"), overviews=(2,))
    bare = write(tmp_path / "bare.tif", np.full((128, 128), 90, "uint8"))

    [ours] = band_statistics([(large, None), (small, None), (bare, None)], overview_level=2)

    counts = np.array([512 * 512, 512 * 256, 128 * 128])
    assert ours.count == counts.sum()
    assert ours.mean == pytest.approx(np.average([10, 70, 90], weights=counts))


def test_adjacent_windows_share_no_pixel_of_an_overview(tmp_path):
    path = write(tmp_path / "a.tif", np.full((333, 517), 5, "uint8"), overviews=(2, 4, 8))

    parts = [(path, (0, 0, 203, 333)), (path, (203, 0, 314, 333))]
    [split], [whole] = (band_statistics(each, overview_level=2) for each in (parts, [(path, None)]))

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
        case "alpha and nodata":
            path = write(
                tmp_path / "a.tif", np.stack([data, np.where(hidden, 0, 255).astype("uint8")]), alpha=True, nodata=255
            )
    return path, data[~hidden]


@pytest.mark.parametrize("how", ["nodata", "nan", "nan nodata", "mask", "alpha", "alpha and nodata"])
def test_nodata_is_not_counted(tmp_path, how):
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

    require_equal(band_statistics([(path, None)], exact=True)[0], gdalinfo_statistics(path)[0])


def test_the_order_and_the_sizes_of_merged_pieces_do_not_matter():
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
        assert (merged.mean, merged.deviation) == pytest.approx((whole.mean, whole.deviation), rel=1e-9)


def test_a_band_without_data_has_no_statistics(tmp_path):
    empty = write(tmp_path / "a.tif", np.zeros((100, 100), "uint8"), nodata=0)
    full = write(tmp_path / "b.tif", np.full((100, 100), 7, "uint8"), nodata=0)

    assert band_statistics([(empty, None)]) == (None,)
    [together] = band_statistics([(empty, None), (full, None)])
    assert (together.count, together.valid_percent, together.stddev) == (10_000, 50.0, 0.0)


def test_a_constant_band_has_a_histogram(tmp_path):
    path = write(tmp_path / "a.tif", np.full((100, 100), 7.5, "float32"))

    [ours] = band_statistics([(path, None)])

    assert ours.histogram.as_json() == {"count": 3, "min": 7.0, "max": 8.0, "buckets": [0, 10_000, 0]}
    assert set(ours.percentiles.values()) == {7.5}


def test_rasters_are_read_in_small_chunks(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tif", values("uint8"))
    monkeypatch.setattr(statistics, "CHUNK_PIXELS", 128 * 128)
    sizes = []
    read = statistics.read_with_validity
    monkeypatch.setattr(
        statistics,
        "read_with_validity",
        lambda d, b, w, **more: sizes.append(w.width * w.height) or read(d, b, w, **more),
    )

    [ours] = band_statistics([(path, (10, 20, 301, 200))], exact=True)

    assert max(sizes) <= 128 * 128
    assert ours.count == sum(sizes) == 301 * 200


def test_statistics_are_complete_as_json(tmp_path):
    [ours] = band_statistics([(write(tmp_path / "a.tif", values("float32")), None)])

    document = json.loads(json.dumps(ours.as_json()))

    assert document == {
        **{field.name: getattr(ours, field.name) for field in fields(BandStatistics)},
        "percentiles": {str(rank): value for rank, value in ours.percentiles.items()},
        "histogram": {
            "count": len(ours.histogram.buckets),
            "min": ours.histogram.minimum,
            "max": ours.histogram.maximum,
            "buckets": list(ours.histogram.buckets),
        },
    }


def test_rasters_with_different_numbers_of_bands_cannot_be_combined(tmp_path):
    one = write(tmp_path / "a.tif", np.ones((2, 50, 50), "uint8"))
    other = write(tmp_path / "b.tif", np.ones((50, 50), "uint8"))

    with pytest.raises(UnfitData, match="number of bands"):
        combine([measure(one), measure(other)])


def test_the_error_for_an_unreadable_raster_names_the_file_without_its_folder(tmp_path):
    (tmp_path / "bad.tif").write_bytes(b"II*\0nothing")

    with pytest.raises(Unavailable) as refused:
        measure(tmp_path / "bad.tif")

    assert "bad.tif" in str(refused.value)
    assert str(tmp_path) not in str(refused.value)


def test_merged_partials_give_the_statistics_of_the_whole():
    data = np.arange(1000, dtype="uint16")

    [ours] = summarize((merge(partial_of(data[:300]), partial_of(data[300:])),))

    assert ours.percentiles[50] == 499.5
    assert ours.stddev == pytest.approx(data.std())


# While a COG is written


def written(tmp_path, data, *, tier="analysis", crs="EPSG:4326", own=None, window=None, raster_type="dem", **options):
    source = write_raster(tmp_path / "source.tif", data, **options)
    grid = output_grid(read_facts(source), crs)
    return make_cog(
        source,
        tmp_path / "cog.tif",
        grid,
        window,
        profile_of(tier, 85),
        raster_type=RasterType(raster_type),
        own=own,
    )


def whole_array(path, band):
    """The valid values according to rasterio's masks, without infinity."""
    with rasterio.open(path) as dataset:
        values = dataset.read(band, masked=True)
    return values.compressed()[np.isfinite(values.compressed())]


WIDE = {
    "int64": (2**63 - 9000, 2**63 - 1),
    "uint64": (2**64 - 9000, 2**64 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint8": (1, 255),
    "uint16": (1, 65535),
    "int16": (-30000, 32767),
}


@pytest.mark.parametrize("dtype", [*WIDE, "float32", "float64"])
@pytest.mark.parametrize("crs", ["EPSG:32633", "EPSG:4326"])
def test_statistics_of_a_cog_are_exact_without_reading_it_again(tmp_path, dtype, crs):
    rng = np.random.default_rng(8)
    shape = (3, 700, 900)
    if dtype in WIDE:
        low, high = WIDE[dtype]
        data = rng.integers(low, high, shape, dtype=dtype)
        nodata = None if dtype in ("int64", "uint64") else float(high)
    else:
        data, nodata = rng.normal(300, 80, shape).astype(dtype), -9999.0
        data[0, 5, 5] = np.inf
    if nodata is not None:
        data[:, 100:300, 200:400] = nodata

    cog = written(tmp_path, data, crs=crs, nodata=nodata, raster_type="multispectral")

    for band, ours in enumerate(summarize(cog.statistics), 1):
        seen = whole_array(cog.path, band)
        assert (ours.count, ours.minimum, ours.maximum) == (seen.size, seen.min(), seen.max())
        wide = seen.astype(np.longdouble)  # holds every 64-bit integer
        above = (wide - wide.min()).astype("float64")
        assert ours.mean == pytest.approx(float(wide.min() + above.mean()), rel=1e-12, abs=1e-15 * above.max())
        assert ours.stddev == pytest.approx(above.std(), rel=1e-10)
        assert ours.valid_percent == pytest.approx(100 * seen.size / (cog.width * cog.height))
        assert not ours.approximate
        ranks = np.percentile(wide, [2, 25, 50, 75, 98]).astype("float64")
        assert list(ours.percentiles.values()) == pytest.approx(ranks, abs=ours.percentile_error + 1e-9, rel=1e-15)
        assert sum(ours.histogram.buckets) == ours.count


def test_gdalinfo_agrees_with_the_statistics_of_a_cog(tmp_path):
    data = (smooth(1200, 1400) * 300 + 800).astype("float32")
    data[:100, :100] = -9999
    data[500, 700] = 18_760.5  # an overview would average it

    cog = written(tmp_path, data, nodata=-9999)

    [ours] = summarize(cog.statistics)
    require_equal(ours, gdalinfo_statistics(cog.path)[0], rel=1e-9)
    assert ours.maximum > 5_000


@pytest.mark.parametrize("tier", ["analysis", "visualization"])
def test_statistics_of_a_jpeg_cog_are_computed_before_compression_and_marked(tmp_path, tier):
    data = np.stack([(smooth(600, 700, seed=seed) * 255).astype("uint8") for seed in (1, 2, 3)])

    lossless = written(tmp_path, data, raster_type="rgb", photometric="RGB").path.rename(tmp_path / "lossless.tif")

    cog = written(tmp_path, data, tier=tier, raster_type="rgb", photometric="RGB")

    for band, ours in enumerate(summarize(cog.statistics), 1):
        with rasterio.open(lossless) as dataset:
            seen = dataset.read(band)[dataset.dataset_mask() != 0].astype("float64")
        assert ours.before_compression is ours.as_json()["before_compression"] is (tier == "visualization")
        assert (ours.count, ours.minimum, ours.maximum) == (seen.size, seen.min(), seen.max())
        assert (ours.mean, ours.stddev) == pytest.approx((seen.mean(), seen.std()), rel=1e-11)


@pytest.mark.parametrize("tier", ["analysis", "visualization"])
@pytest.mark.parametrize("own", [(512, 512), (300, 700), (700, 700), (512, 600)])
def test_only_the_own_part_of_a_tile_is_counted_in_a_mosaic(tmp_path, own, tier):
    data = np.stack([(smooth(700, 700, seed=seed) * 200 + 20).astype("uint8") for seed in (1, 2, 3)])
    data[:, 40:80] = 0

    cog = written(tmp_path, data, crs="EPSG:32633", own=own, nodata=0, raster_type="rgb", photometric="RGB", tier=tier)

    values, seen = data[1].astype("float64"), data[1] != 0
    core = np.s_[: own[1], : own[0]]
    for partials, area in ((cog.statistics, np.s_[:, :]), (cog.own_statistics, core)):
        [_, ours, _] = summarize(partials)
        expected = values[area][seen[area]]
        assert (ours.count, ours.minimum, ours.maximum) == (expected.size, expected.min(), expected.max())
        assert (ours.mean, ours.stddev) == pytest.approx((expected.mean(), expected.std()), rel=1e-12)
        assert ours.valid_percent == pytest.approx(100 * seen[area].mean())


def test_alpha_is_counted_in_blocks_that_are_not_stored_too(tmp_path):
    data = np.full((4, 1200, 1200), 90, "uint8")
    data[3] = 0
    data[3, :400, :400] = 255

    cog = written(tmp_path, data, crs="EPSG:32633", raster_type="rgba", photometric="RGB", alpha="YES")

    [red, _, _, alpha] = summarize(cog.statistics)
    assert (red.count, red.minimum) == (400 * 400, 90)
    assert (alpha.count, alpha.minimum, alpha.maximum, alpha.valid_percent) == (1200 * 1200, 0, 255, 100)
    assert alpha.mean == pytest.approx(255 * 400 * 400 / 1200**2)


@pytest.mark.parametrize(
    "data",
    [
        np.array([1e300, -1e300, 5e299, 0.0]),
        np.array([1.7e308, -1.7e308, 1.6e308]),
        np.array([1e-200, 3e-200, 2e-200]),
        np.array([5e-324, 1e-323, 0.0]),
        np.array([3.4e38, -3.4e38, 1.0], dtype="float32"),
        np.array([2**63 - 1, -(2**63), 0], dtype="int64"),
        np.array([2**64 - 1, 2**64 - 5, 2**64 - 3], dtype="uint64"),
        np.array([127, -128], dtype="int8"),
    ],
    ids=str,
)
def test_extreme_values_of_a_type_neither_overflow_nor_underflow(data):
    true = [Fraction(value) for value in data.tolist()]
    mean = sum(true) / len(true)
    variance = sum((value - mean) ** 2 for value in true) / len(true)
    whole = partial_of(np.concatenate([data, data]))
    halves = merge(partial_of(data), Partial.unpack(json.loads(json.dumps(partial_of(data).pack()))))
    pieces = functools.reduce(merge, [partial_of(data[at : at + 1]) for at in range(len(data))])

    for ours in summarize((whole, halves, pieces)):
        assert (ours.minimum, ours.maximum) == (min(data.tolist()), max(data.tolist()))
        assert float(abs(Fraction(ours.mean) - mean)) <= 1e-12 * float(max(map(abs, true)))
        # The variance may exceed a float: compare the ratio.
        ratio = float(Fraction(ours.stddev) ** 2 / variance)
        assert ratio == pytest.approx(1, rel=1e-9 if float(max(map(abs, true))) > 1e-300 else 1)
        assert all(ours.minimum <= value <= ours.maximum for value in ours.percentiles.values())
        assert sum(ours.histogram.buckets) == ours.count
        json.dumps(ours.as_json(), allow_nan=False)


def test_merged_pieces_are_exact_for_random_data():
    rng = np.random.default_rng(12)
    for _ in range(60):
        kind = rng.choice(["uint8", "int16", "int32", "int64", "float32", "float64"])
        size = int(rng.integers(1, 4000))
        data = (rng.normal(rng.uniform(-1e4, 1e4), rng.uniform(0.1, 1e4), size)).clip(-30000, 30000)
        data = np.abs(data % 256).astype(kind) if kind == "uint8" else data.astype(kind)
        cuts = np.sort(rng.integers(0, size, 5))

        merged = functools.reduce(merge, [partial_of(piece) for piece in np.split(data, cuts)])
        [ours] = summarize((merged,))

        exact = data.astype("float64")
        assert (ours.count, ours.minimum, ours.maximum) == (size, exact.min(), exact.max())
        assert ours.mean == pytest.approx(exact.mean(), rel=1e-12, abs=1e-12)
        assert ours.stddev == pytest.approx(exact.std(), rel=1e-10, abs=1e-12)
        expected = np.percentile(exact, [2, 25, 50, 75, 98])
        assert list(ours.percentiles.values()) == pytest.approx(expected, abs=ours.percentile_error + 1e-9)
        span = ours.maximum - ours.minimum
        assert ours.percentile_error <= max(2 * span / statistics.BINS, abs(exact).max() * 2.0**-39)


def test_statistics_from_an_overview_are_marked_as_approximate(tmp_path):
    path = write(tmp_path / "a.tif", values("uint16"), overviews=(2, 4))

    [exact], [ours] = band_statistics([(path, None)]), band_statistics([(path, None)], overview_level=1)
    [both] = summarize(combine([measure(path), measure(path, overview_level=0)]))

    assert (exact.approximate, exact.percentile_error) == (False, 0)
    assert (ours.approximate, ours.percentile_error) == (True, None)
    assert both.approximate
    assert ours.as_json()["approximate"] is True


def test_partials_of_an_earlier_release_can_be_merged():
    packed = partial_of(np.arange(100, dtype="uint8")).pack()
    old = {name: value for name, value in packed.items() if name not in ("deviation", "infinite", "approximate")}

    [ours] = summarize((merge(Partial.unpack(old), partial_of(np.arange(100, 200, dtype="uint8"))),))

    assert (ours.count, ours.mean) == (200, 99.5)
    assert ours.stddev == pytest.approx(np.arange(200).std())
