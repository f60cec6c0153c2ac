"""Facts from headers: compared with gdalinfo, quickly, and without reading other files."""

import json
import math
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from rasterio.transform import from_bounds, from_origin
from rasterio.warp import transform_bounds
from rio_cogeo.cogeo import cog_translate, cog_validate
from rio_cogeo.profiles import cog_profiles

from dagmaster.errors import InvalidRequest, NotFound, UnfitData
from dagmaster.raster.source.extent import geographic_bounds
from dagmaster.raster.source.facts import RasterFacts, read_facts
from tests.raster.rasters import TRANSFORM, hills, noise, write_raster

pytestmark = pytest.mark.requirement("R2")

GDAL_TYPES = {
    "Byte": "uint8",
    "UInt16": "uint16",
    "Int16": "int16",
    "Int32": "int32",
    "Float32": "float32",
    "Float64": "float64",
}


def gdalinfo(path: Path) -> dict[str, Any]:
    return dict(json.loads(subprocess.run(["gdalinfo", "-json", str(path)], check=True, capture_output=True).stdout))


def describe_elevation(dataset: Any) -> None:
    dataset.set_band_description(1, "elevation")
    dataset.units = ["m"]
    dataset.scales, dataset.offsets = [0.1], [5.0]


def give_palette(dataset: Any) -> None:
    dataset.write_colormap(1, {0: (0, 0, 0, 255), 1: (255, 0, 0, 255), 2: (0, 255, 0, 128)})


FILES: dict[str, dict[str, Any]] = {
    "rgb strips": {"values": noise(3, 70, 90)},
    "rgba tiles": {
        "values": noise(4, 300, 280),
        "tiled": True,
        "blockxsize": 128,
        "blockysize": 256,
        "photometric": "RGB",
    },
    "elevation": {"values": hills(60, 50), "nodata": -9999, "after": describe_elevation},
    "nan nodata": {"values": hills(60, 50), "nodata": math.nan, "compress": "deflate"},
    "palette": {"values": noise(40, 40, high=3), "after": give_palette},
    "bits": {"values": noise(40, 40, high=2, low=0), "nbits": 1},
    "sixteen bands": {"values": noise(16, 20, 20, dtype="uint16"), "interleave": "band"},
    "big endian": {"values": noise(30, 30, dtype="int16"), "ENDIANNESS": "BIG", "BIGTIFF": "YES"},
    "imagine": {"values": noise(2, 80, 80, dtype="uint16"), "driver": "HFA"},
    "jpeg 2000": {"values": noise(3, 80, 80), "driver": "JP2OpenJPEG"},
}


@pytest.mark.parametrize("name", FILES)
def test_the_facts_agree_with_gdalinfo(name: str, tmp_path: Path) -> None:
    ending = {"JP2OpenJPEG": "jp2", "HFA": "img"}.get(FILES[name].get("driver", ""), "tif")
    path = write_raster(tmp_path / f"scene.{ending}", **FILES[name])

    facts = read_facts(path)

    theirs = gdalinfo(path)
    assert facts.driver == theirs["driverShortName"]
    assert [facts.width, facts.height] == theirs["size"]
    assert facts.crs == "EPSG:32633"
    a, b, c, d, e, f = facts.transform or ()
    assert [c, a, b, f, d, e] == theirs["geoTransform"]
    structure = theirs["metadata"].get("IMAGE_STRUCTURE", {})
    assert facts.compression == structure.get("COMPRESSION")
    assert facts.interleave == structure.get("INTERLEAVE")
    assert facts.size_bytes == path.stat().st_size
    for ours, band in zip(facts.bands, theirs["bands"], strict=True):
        assert ours.dtype == GDAL_TYPES[band["type"]]
        assert list(ours.block_shape) == band["block"][::-1]
        assert ours.color == band["colorInterpretation"].lower()
        assert str(ours.nodata) == str(float(band["noDataValue"]) if "noDataValue" in band else None).lower().replace(
            "none", "None"
        )
        assert ours.description == band.get("description")
        assert ours.unit == (band.get("unit") or None)
        assert (ours.scale, ours.offset) == (band.get("scale", 1), band.get("offset", 0))
        assert ours.bits == (int(bits) if (bits := band["metadata"].get("IMAGE_STRUCTURE", {}).get("NBITS")) else None)
        palette = band.get("colorTable", {}).get("entries")
        assert (ours.palette is None) == (palette is None)
        assert palette is None or [list(ours.palette[number]) for number in range(len(palette))] == palette  # type: ignore[index]


def test_the_headers_of_a_file_of_ten_gigabytes_take_less_than_a_second(tmp_path: Path) -> None:
    """They are read in milliseconds; the limit is a second."""
    for name, options in {"sparse": {"SPARSE_OK": True}, "strips": {"tiled": False, "SPARSE_OK": True}}.items():
        path = tmp_path / name
        shape = {"width": 60_000, "height": 60_000, "count": 3, "dtype": "uint8"}
        tiles = {"tiled": True, "blockxsize": 512, "blockysize": 512, "BIGTIFF": "YES", "interleave": "pixel"}
        with rasterio.open(
            path, "w", driver="GTiff", crs="EPSG:32633", transform=TRANSFORM, **shape, **(tiles | options)
        ):
            pass
        os.truncate(path, 10 * 2**30)

        start = time.perf_counter()
        facts = read_facts(path)
        taken = time.perf_counter() - start

        assert facts.size_bytes == 10 * 2**30
        assert facts.raw_bytes == 60_000 * 60_000 * 3
        assert taken < 1
        path.unlink()


def test_no_other_file_is_read_or_written(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "scene.tif", noise(600, 600), crs=None, transform=None)
    before = read_facts(path)
    (tmp_path / "scene.tfw").write_text("10\n0\n0\n-10\n500005\n4999995\n")
    (tmp_path / "scene.tif.aux.xml").write_text(
        "<PAMDataset><SRS>EPSG:32633</SRS><GeoTransform>5e5,10,0,5e6,0,-10</GeoTransform></PAMDataset>"
    )
    write_raster(tmp_path / "scene.tif.ovr", noise(300, 300))
    write_raster(tmp_path / "scene.tif.msk", noise(600, 600))
    write_raster(tmp_path / "scene.prj", noise(6, 6))
    names = sorted(path.name for path in tmp_path.iterdir())

    facts = read_facts(path)

    assert facts == before
    assert facts.transform is None
    assert facts.crs is None
    assert facts.bands[0].overviews == ()
    assert facts.bands[0].mask == ("all_valid",)
    assert sorted(path.name for path in tmp_path.iterdir()) == names


VRT = """<VRTDataset rasterXSize="8" rasterYSize="8">
<VRTRasterBand dataType="Byte" band="1" subClass="VRTRawRasterBand">
<SourceFilename>/etc/passwd</SourceFilename></VRTRasterBand></VRTDataset>"""
WMS = '<GDAL_WMS><Service name="TMS"><ServerUrl>http://localhost/${z}/${x}/${y}.png</ServerUrl></Service></GDAL_WMS>'


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        (VRT.encode(), "submit the raster itself"),
        (WMS.encode(), "submit the raster itself"),
        (b"\n <html>404", "submit the raster itself"),
        (b"PK\x03\x04" + b"x" * 100, "unpack"),
        (b"CDF\x01" + bytes(100), "gdal_translate NETCDF:"),
        (b"hello " * 20, "submit the raster that it describes"),
        (bytes(range(128, 256)), "gdal_translate"),
    ],
)
def test_other_formats_are_refused_with_advice(content: bytes, advice: str, tmp_path: Path) -> None:
    path = tmp_path / "scene.tif"
    path.write_bytes(content)

    with pytest.raises(UnfitData) as refused:
        read_facts(path)

    assert refused.value.code == "raster.unsupported-format"
    assert advice in (refused.value.hint or "")
    assert str(tmp_path) not in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        "/vsicurl/http://localhost/a.tif",
        "https://localhost/a.tif",
        "/vsizip/a.zip/b.tif",
        "s3://bucket/a.tif",
        "/vsiaz/c/a.tif",
        "a\0b",
        "zip://x!a.tif",
    ],
)
def test_a_name_that_is_not_a_local_path_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        read_facts(name)


@pytest.mark.parametrize("prefix", ["GTIFF_DIR:1:", "DERIVED_SUBDATASET:AMPLITUDE:", "VRT://", "GTIFF_RAW:", "NETCDF:"])
def test_a_prefix_of_gdal_is_treated_as_part_of_the_file_name(prefix: str, tmp_path: Path) -> None:
    path = write_raster(tmp_path / "scene.tif", noise(8, 8))

    with pytest.raises((NotFound, InvalidRequest)):
        read_facts(f"{prefix}{path}")


def test_a_damaged_file_is_reported_without_its_folder(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "scene.tif", noise(60, 60))
    damaged = []
    for size in (4, 8, 20, 60):
        (tmp_path / "cut.tif").write_bytes(path.read_bytes()[:size])
        with pytest.raises(UnfitData) as refused:
            read_facts(tmp_path / "cut.tif")
        assert refused.value.code == "raster.corrupt"
        damaged.append(str(refused.value))

    assert "cut.tif" in damaged[0]
    assert str(tmp_path) not in " ".join(damaged)


def test_pipes_folders_and_empty_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()

    codes = {}
    for name in ("pipe", "empty", "."):
        with pytest.raises(UnfitData) as refused:
            read_facts(tmp_path / name)
        codes[name] = refused.value.code

    assert codes == {"pipe": "raster.not-a-file", "empty": "raster.empty", ".": "raster.not-a-file"}


def test_an_imagine_file_with_pixels_in_another_file_is_refused(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "scene.img", noise(64, 64), driver="HFA", USE_SPILL="YES")
    assert (tmp_path / "scene.ige").exists()

    with pytest.raises(UnfitData) as refused:
        read_facts(path)

    assert refused.value.code == "raster.indirect"


def test_texts_that_are_not_utf8_do_not_break_the_facts(tmp_path: Path) -> None:
    import tifffile

    path = tmp_path / "scene.tif"
    metadata = (
        "<GDALMetadata><Item name='DESCRIPTION' sample='0' role='description'>caf\xe9</Item></GDALMetadata>".encode(
            "latin1"
        )
    )
    tifffile.imwrite(path, noise(16, 16), extratags=[(42112, "s", 0, metadata, True)])

    assert read_facts(path).bands[0].description is None


# Reference systems


def test_a_crs_is_recognised_in_every_notation(tmp_path: Path) -> None:
    esri = CRS.from_wkt(CRS.from_epsg(2193).to_wkt(version="WKT1_ESRI"))

    assert read_facts(write_raster(tmp_path / "a.tif", noise(8, 8), crs=esri)).crs == "EPSG:2193"
    assert read_facts(write_raster(tmp_path / "b.tif", noise(8, 8), crs="ESRI:54009")).crs == "ESRI:54009"


def test_a_crs_that_is_only_similar_keeps_its_wkt(tmp_path: Path) -> None:
    """It has datum parameters of its own: GDAL matches it to EPSG:31467 with a confidence of 70 %,
    which is metres away."""
    zone = "+proj=tmerc +lat_0=0 +lon_0=9 +k=1 +x_0=3500000 +y_0=0 +ellps=bessel"
    similar = CRS.from_proj4(f"{zone} +towgs84=598.1,73.7,418.2,0.202,0.045,-2.455,6.7 +units=m")
    assert similar.to_epsg() == 31467

    facts = read_facts(write_raster(tmp_path / "a.tif", noise(8, 8), crs=similar))

    assert facts.crs is not None
    assert "TOWGS84" in facts.crs
    assert facts.bounds_4326 is not None


def test_the_vertical_part_of_a_crs_is_separated(tmp_path: Path) -> None:
    facts = read_facts(write_raster(tmp_path / "a.tif", hills(8, 8), crs=CRS.from_user_input("EPSG:32633+5773")))

    assert facts.crs == "EPSG:32633"
    assert facts.vertical_crs == "EGM96 height"


def test_source_crs_takes_precedence_over_the_crs_of_the_file(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "a.tif", noise(8, 8))

    facts = read_facts(path, source_crs="EPSG:32634")

    assert (facts.crs, facts.file_crs) == ("EPSG:32634", "EPSG:32633")
    assert facts.bounds_4326 is not None
    assert facts.bounds_4326[0] == pytest.approx(21)


@pytest.mark.parametrize(
    "text",
    [
        "EPSG:999999",
        "/etc/passwd",
        "http://localhost/crs",
        "+proj=utm +zone=33",
        "nonsense",
        "",
        "PROJCS[",
        "EPSG:4326;x",
    ],
)
def test_a_crs_that_is_neither_a_code_nor_wkt_is_refused(text: str, tmp_path: Path) -> None:
    path = write_raster(tmp_path / "a.tif", noise(8, 8))

    if text:
        with pytest.raises(InvalidRequest, match="CRS"):
            read_facts(path, source_crs=text)
    else:
        assert read_facts(path, source_crs=text).crs == "EPSG:32633"


# Bounds


def bounds_of(crs: Any, *box: float) -> Any:
    side = 400
    transform = from_bounds(*box, side, side)
    return geographic_bounds(CRS.from_user_input(crs), tuple(transform)[:6], side, side)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("crs", "box"),
    [
        ("EPSG:32633", (300_000, 5_000_000, 700_000, 5_400_000)),
        ("EPSG:3857", (-2e6, -3e6, 1e6, 4e6)),
        ("EPSG:3035", (2_500_000, 1_500_000, 6_000_000, 5_000_000)),
        ("EPSG:2193", (1_000_000, 4_700_000, 2_100_000, 6_200_000)),
        ("EPSG:32701", (200_000, 7_900_000, 500_000, 8_300_000)),
        ("EPSG:32601", (166_000, 5_600_000, 400_000, 5_900_000)),
        ("EPSG:3031", (1_000_000, -500_000, 2_000_000, 500_000)),
        ("EPSG:3413", (-2_000_000, -3_000_000, 2_000_000, 2_500_000)),
        ("EPSG:3995", (-3e6, -1e6, -1e6, 1e6)),
        ("EPSG:4258", (5, 45, 15, 55)),
        ("EPSG:3832", (-2e6, -1e6, 5e6, 1e6)),
    ],
)
def test_bounds_in_degrees_agree_with_proj(crs: str, box: tuple[float, float, float, float]) -> None:
    ours = bounds_of(crs, *box)

    assert ours == pytest.approx(transform_bounds(crs, "EPSG:4326", *box, densify_pts=99), abs=1e-4)


def test_bounds_across_the_antimeridian_have_a_west_greater_than_their_east() -> None:
    fiji = bounds_of("EPSG:3460", 1_800_000, 3_500_000, 2_300_000, 4_200_000)
    assert fiji[0] > 170
    assert fiji[2] < -170

    assert bounds_of("EPSG:4326", 170, -20, 190, -10) == pytest.approx((170, -20, -170, -10))
    assert bounds_of("EPSG:4326", -190, -20, -170, -10) == pytest.approx((170, -20, -170, -10))


def test_a_raster_that_ends_at_the_antimeridian_does_not_cross_it() -> None:
    assert bounds_of("EPSG:4326", 170, 0, 180, 10) == pytest.approx((170, 0, 180, 10))
    assert bounds_of("EPSG:4326", -180, 0, -170, 10) == pytest.approx((-180, 0, -170, 10))
    assert bounds_of("EPSG:4326", 180, 0, 190, 10) == pytest.approx((-180, 0, -170, 10))
    assert bounds_of("EPSG:4326", 200, 0, 230, 10) == pytest.approx((-160, 0, -130, 10))


def test_the_bounds_of_a_global_raster_are_the_whole_world() -> None:
    world = pytest.approx((-180, -90, 180, 90))

    assert bounds_of("EPSG:4326", -180, -90, 180, 90) == world
    assert bounds_of("EPSG:4326", 0, -90, 360, 90) == world
    assert bounds_of("EPSG:4326", -180.25, -90.25, 179.75, 90.25) == world
    assert bounds_of("ESRI:54009", -18_040_000, -9_020_000, 18_040_000, 9_020_000) == pytest.approx(
        (-180, -90, 180, 90), abs=8
    )


def test_a_pole_inside_gives_all_longitudes() -> None:
    west, south, east, north = bounds_of("EPSG:3031", -2.5e6, -2e6, 2.5e6, 2.2e6)
    assert (west, south, east) == (-180, -90, 180)
    assert -63 < north < -57

    assert bounds_of("EPSG:3413", -100, -100, 200, 200)[3] == 90


def test_a_pole_on_the_edge_gives_only_the_longitudes_of_that_side() -> None:
    """Tiles of polar mosaics meet at the pole."""
    west, south, east, _ = bounds_of("EPSG:3031", 0, -100_000, 100_000, 0)
    assert (west, east) == pytest.approx((90, 180), abs=1e-6)
    assert south == pytest.approx(-90)

    west, _, east, _ = bounds_of("EPSG:3031", -100_000, -100_000, 100_000, 0)
    assert (west, east) == pytest.approx((90, -90), abs=1e-6)
    assert bounds_of("EPSG:4326", -10, 80, 10, 90) == pytest.approx((-10, 80, 10, 90))


def test_the_bounds_of_a_full_disk_are_those_of_its_part_on_earth() -> None:
    disk = CRS.from_proj4("+proj=geos +h=35785831 +lon_0=140.7 +sweep=y")

    west, south, east, north = bounds_of(disk, -5.5e6, -5.5e6, 5.5e6, 5.5e6)

    assert 55 < west < 75
    assert -155 < east < -135  # across the antimeridian
    assert -82 < south < -60
    assert 60 < north < 82


def test_the_bounds_of_a_rotated_grid_are_those_of_its_corners(tmp_path: Path) -> None:
    rotated = Affine.translation(500_000, 5_000_000) @ Affine.rotation(30) @ Affine.scale(10, -10)
    facts = read_facts(write_raster(tmp_path / "a.tif", noise(100, 200), transform=rotated))

    corners = [rotated * corner for corner in ((0, 0), (200, 0), (200, 100), (0, 100))]
    xs, ys = zip(*corners, strict=True)
    assert facts.is_rotated
    assert facts.bounds == pytest.approx((min(xs), min(ys), max(xs), max(ys)))
    assert facts.resolution == pytest.approx((10, 10))
    wide = transform_bounds("EPSG:32633", "EPSG:4326", *facts.bounds or ())
    assert facts.bounds_4326 is not None
    assert wide[0] <= facts.bounds_4326[0] + 1e-9
    assert facts.bounds_4326 == pytest.approx(wide, abs=1e-4)


# Other parts of the header


def test_control_points_are_counted_and_give_no_grid(tmp_path: Path) -> None:
    points = [GroundControlPoint(row, col, 10 + col / 100, 50 - row / 100) for row in (0, 50) for col in (0, 50)]

    facts = read_facts(write_raster(tmp_path / "a.tif", noise(50, 50), crs="EPSG:4326", transform=None, gcps=points))

    assert facts.gcp_count == 4
    assert facts.transform is None


def test_a_nodata_value_that_the_type_cannot_hold_is_reported_separately(tmp_path: Path) -> None:
    import tifffile

    for text, value in {"-9999": -9999.0, "256": 256.0, "nan": math.nan}.items():
        tifffile.imwrite(tmp_path / "a.tif", noise(16, 16), extratags=[(42113, "s", 0, text, True)])
        band = read_facts(tmp_path / "a.tif").bands[0]
        assert band.nodata is None
        assert str(band.impossible_nodata) == str(value)


def test_pages_alpha_and_masks_are_reported(tmp_path: Path) -> None:
    import tifffile

    with tifffile.TiffWriter(tmp_path / "pages.tif") as pages:
        for number in range(3):
            pages.write(noise(16, 16, seed=number))
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        write_raster(tmp_path / "mask.tif", noise(16, 16), after=lambda dataset: dataset.write_mask(noise(16, 16) > 99))
    write_raster(tmp_path / "alpha.tif", noise(4, 16, 16), photometric="RGB", alpha="unspecified")
    with rasterio.open(tmp_path / "alpha.tif", "r+") as dataset:
        dataset.colorinterp = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]

    assert read_facts(tmp_path / "pages.tif").pages == 3
    assert "per_dataset" in read_facts(tmp_path / "mask.tif").bands[0].mask
    assert read_facts(tmp_path / "alpha.tif").bands[3].color == "alpha"


def test_cogs_are_recognised_as_by_rio_cogeo(tmp_path: Path) -> None:
    plain = write_raster(tmp_path / "plain.tif", noise(1100, 1300))
    tiled = {"tiled": True, "blockxsize": 256, "blockysize": 256}
    write_raster(tmp_path / "small.tif", noise(300, 300))
    write_raster(tmp_path / "tiled.tif", noise(1100, 1300), **tiled)
    write_raster(tmp_path / "late overviews.tif", noise(1100, 1300), **tiled)
    with rasterio.open(tmp_path / "late overviews.tif", "r+") as dataset:
        dataset.build_overviews([2, 4])
    cog_translate(plain, tmp_path / "rio-cogeo.tif", cog_profiles.get("deflate"), quiet=True, in_memory=True)
    write_raster(tmp_path / "driver.tif", noise(3, 1100, 1300), driver="COG", BLOCKSIZE=256)
    write_raster(
        tmp_path / "sparse.tif",
        np.where(np.arange(1300) > 900, 7, 0) * np.ones((1100, 1)).astype("uint8"),
        driver="COG",
        nodata=0,
        SPARSE_OK=True,
    )
    disorder = bytearray(
        write_raster(tmp_path / "disorder.tif", noise(1100, 1300), driver="COG", BLOCKSIZE=512).read_bytes()
    )
    with rasterio.open(tmp_path / "disorder.tif") as dataset:
        first, coarser = (
            int(dataset.get_tag_item("BLOCK_OFFSET_0_0", "TIFF", bidx=1, ovr=level)) for level in (None, 0)
        )
    at = disorder.index(first.to_bytes(4, "little"))
    disorder[at : at + 4] = (coarser - 8).to_bytes(4, "little")
    (tmp_path / "disorder.tif").write_bytes(disorder)
    names = sorted(path.name for path in tmp_path.glob("*.tif"))

    ours = {name: read_facts(tmp_path / name).is_cog for name in names}

    assert ours == {name: cog_validate(tmp_path / name, strict=True, quiet=True)[0] for name in names}
    assert ours["rio-cogeo.tif"]
    assert not ours["late overviews.tif"]
    assert not ours["disorder.tif"]


def test_a_raster_without_bands_has_facts() -> None:
    facts = RasterFacts(path="folder/a.tif", driver="GTiff", width=0, height=0, bands=())

    assert (facts.name, facts.dtype, facts.nodata, facts.raw_bytes, facts.resolution) == (
        "a.tif",
        "unknown",
        None,
        0,
        None,
    )


def test_a_file_in_memory_can_be_read_like_one_in_a_store(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "a.tif", noise(8, 8))

    with rasterio.MemoryFile(path.read_bytes()) as memory:
        facts = read_facts(memory.name, size_bytes=1234)

    assert (facts.width, facts.size_bytes, facts.driver) == (8, 1234, "GTiff")


def test_a_relative_path_works_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_raster(tmp_path / "a.tif", noise(8, 8), transform=from_origin(0, 10, 1, 1), crs="EPSG:4326")
    monkeypatch.chdir(tmp_path)

    assert read_facts("a.tif").path == "a.tif"
