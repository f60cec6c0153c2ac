"""Malicious headers, malicious names and incomplete files get the right verdict, quickly."""

import json
import math
import os
import random
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from dagmaster.errors import InvalidRequest, NotFound, UnfitData
from dagmaster.raster.cog.grid import output_grid
from dagmaster.raster.cog.write import make_cog
from dagmaster.raster.source.facts import RasterType, read_facts
from dagmaster.raster.validation.check import Verdict, check
from dagmaster.raster.validation.limits import ProcessLimits, inspect
from tests.raster.rasters import hills, noise, write_raster

pytestmark = pytest.mark.requirement("R2", "X2")

ROOT = Path(__file__).parents[2]
SIDE = 64
PIXELS_AT = 4096
PIXELS = random.Random(1).randbytes(SIDE * SIDE)
SHORT, LONG, ASCII, DOUBLE = 3, 4, 2, 12
FORMATS = {SHORT: "H", LONG: "I", DOUBLE: "d"}
Tags = dict[int, tuple[int, Any]]


def tiff_bytes(tags: Tags | None = None, *, following: int = 0, without: tuple[int, ...] = ()) -> bytes:
    """A small GeoTIFF in UTM, written byte by byte, so that any tag can have any value."""
    all_tags: Tags = {
        256: (LONG, SIDE),
        257: (LONG, SIDE),
        258: (SHORT, 8),
        259: (SHORT, 1),
        262: (SHORT, 1),
        273: (LONG, PIXELS_AT),
        277: (SHORT, 1),
        278: (LONG, SIDE),
        279: (LONG, SIDE * SIDE),
        33550: (DOUBLE, (10, 10, 0)),
        33922: (DOUBLE, (0, 0, 0, 500_000, 5_000_000, 0)),
        34735: (SHORT, (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633)),
    } | (tags or {})
    kept = sorted((tag, content) for tag, content in all_tags.items() if tag not in without)
    entries, beyond = b"", b""
    start = 8 + 2 + 12 * len(kept) + 4
    for tag, (kind, content) in kept:
        value, count = packed(kind, content)
        place = value.ljust(4, b"\0") if len(value) <= 4 else struct.pack("<I", start + len(beyond))
        beyond += b"" if len(value) <= 4 else value + b"\0" * (len(value) % 2)
        entries += struct.pack("<HHI", tag, kind, count) + place
    head = b"II*\0" + struct.pack("<IH", 8, len(kept)) + entries + struct.pack("<I", following) + beyond
    return head.ljust(PIXELS_AT, b"\0") + (PIXELS if len(head) <= PIXELS_AT else b"")


def packed(kind: int, content: Any) -> tuple[bytes, int]:
    if kind == ASCII:
        text = content.encode() + b"\0"
        return text, len(text)
    values = content if isinstance(content, tuple) else (content,)
    return struct.pack(f"<{len(values)}{FORMATS[kind]}", *values), len(values)


def chain_of_directories(count: int, last: int = 0) -> bytes:
    """Many directories of one pixel each; the last one points to `last`."""
    tags = {256: 1, 257: 1, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: 1}
    entries = b"".join(struct.pack("<HHIHH", tag, SHORT, 1, value, 0) for tag, value in tags.items())
    size = 2 + len(entries) + 4
    links = [8 + size * number for number in range(1, count)] + [last]
    return b"II*\0\x08\0\0\0" + b"".join(
        struct.pack("<H", len(tags)) + entries + struct.pack("<I", link) for link in links
    )


def crs(code: int) -> Tags:
    return {34735: (SHORT, (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, code))}


def scale(x: float, y: float) -> Tags:
    return {33550: (DOUBLE, (x, y, 0))}


def metadata(text: str) -> Tags:
    return {42112: (ASCII, f"<GDALMetadata>{text}</GDALMetadata>")}


def nodata(text: str) -> Tags:
    return {42113: (ASCII, text)}


def tiled(side: int, width: int, compression: int = 1) -> bytes:
    tags: Tags = {
        256: (LONG, width),
        257: (LONG, width),
        259: (SHORT, compression),
        322: (LONG, side),
        323: (LONG, side),
        324: (LONG, PIXELS_AT),
        325: (LONG, 40),
    }
    return tiff_bytes(tags, without=(273, 278, 279))


NESTED_ENTITIES = '<!DOCTYPE x [<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
VRT = (
    '<VRTDataset rasterXSize="20" rasterYSize="20"><VRTRasterBand dataType="Byte" band="1"><SimpleSource>'
    "<SourceFilename>{}</SourceFilename></SimpleSource></VRTRasterBand></VRTDataset>"
)
OK: set[str] = set()
ATTACKS: dict[str, tuple[bytes, set[str]]] = {
    "good": (tiff_bytes(), OK),
    # Sizes
    "1e9 by 1e9": (tiff_bytes({256: (LONG, 10**9), 257: (LONG, 10**9)}), {"too-large", "off-earth"}),
    "2^32 by 2^32": (tiff_bytes({256: (LONG, 2**32 - 1), 257: (LONG, 2**32 - 1)}), {"corrupt"}),
    "no width": (tiff_bytes({256: (LONG, 0)}), {"corrupt"}),
    "no bands": (tiff_bytes({277: (SHORT, 0)}), {"corrupt"}),
    "65535 bands": (tiff_bytes({277: (SHORT, 65535), 279: (LONG, SIDE * SIDE * 65535)}), {"too-large"}),
    "0 bits": (tiff_bytes({258: (SHORT, 0)}), {"corrupt"}),
    "1000 bits": (tiff_bytes({258: (SHORT, 1000)}), {"corrupt"}),
    "one tile of 2^31": (tiled(2**31 - 16, 100_000, compression=8), {"block-too-large"}),
    # The grid
    "scale NaN": (tiff_bytes(scale(math.nan, math.nan)), {"bad-transform"}),
    "scale infinite": (tiff_bytes(scale(math.inf, math.inf)), {"bad-transform"}),
    "scale 0": (tiff_bytes(scale(0, 0)), {"bad-transform", "gcp-only"}),
    "scale 1e-300": (tiff_bytes(scale(1e-300, 1e-300)), {"bad-transform"}),
    "scale 1e300": (tiff_bytes(scale(1e300, 1e300)), {"off-earth"}),
    "corner NaN": (tiff_bytes({33922: (DOUBLE, (0, 0, 0, math.nan, math.nan, 0))}), {"bad-transform"}),
    "5000 corners": (tiff_bytes({33922: (DOUBLE, (1.0,) * 30_000)}), OK),
    "matrix NaN": (
        tiff_bytes({34264: (DOUBLE, (math.nan,) * 16)}, without=(33550, 33922)),
        {"bad-transform", "no-georeference"},
    ),
    # GeoKeys
    "EPSG:0": (tiff_bytes(crs(0)), {"local-crs", "no-crs"}),
    "EPSG:1": (tiff_bytes(crs(1)), {"local-crs", "no-crs"}),
    "EPSG:65535": (tiff_bytes(crs(65535)), {"local-crs", "no-crs"}),
    "fewer keys than declared": (tiff_bytes({34735: (SHORT, (1, 1, 0, 200))}), {"no-crs"}),
    "keys with invalid offsets": (
        tiff_bytes(
            {34735: (SHORT, (1, 1, 0, 3, 1024, 34735, 9999, 65535, 1025, 34736, 500, 65000, 3072, 34737, 60000, 60000))}
        ),
        {"no-crs"},
    ),
    "a CRS of 200 kB": (tiff_bytes({34737: (ASCII, "A|" * 100_000)}), {"header-too-large"}),
    # Directories
    "directory that points to itself": (tiff_bytes(following=8), OK),
    "1000 directories in a ring": (chain_of_directories(1000, last=8), {"no-georeference", "no-crs"}),
    "20000 directories": (chain_of_directories(20_000), {"no-georeference", "no-crs"}),
    "directory beyond the end": (b"II*\0" + struct.pack("<I", 2**31) + bytes(200), {"corrupt"}),
    "65535 entries": (b"II*\0" + struct.pack("<IH", 8, 65535) + random.Random(2).randbytes(3000), {"corrupt"}),
    "BigTIFF of 2^63 entries": (b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 2**63) + bytes(300), {"corrupt"}),
    # Blocks
    "block in the header": (tiff_bytes({273: (LONG, 8)}), OK),
    "block beyond the end": (tiff_bytes({273: (LONG, 2**32 - 1)}), {"truncated"}),
    "strips of no rows": (tiff_bytes({278: (LONG, 0)}), {"corrupt"}),
    "strips of 2^32 rows": (tiff_bytes({278: (LONG, 2**32 - 1)}), OK),
    **{
        f"garbage as compression {code}": (tiff_bytes({259: (SHORT, code)}), {"unreadable", "corrupt", "truncated"})
        for code in (4, 5, 6, 7, 8, 9999, 34887, 50000, 50001, 50002)
    },
    # Texts
    "300000 entries of metadata": (tiff_bytes(metadata('<Item name="k">v</Item>' * 300_000)), {"header-too-large"}),
    "metadata 100000 deep": (tiff_bytes(metadata("<a>" * 100_000 + "</a>" * 100_000)), OK),
    "nested entities in metadata": (
        tiff_bytes({42112: (ASCII, NESTED_ENTITIES + "<GDALMetadata><Item>&b;</Item></GDALMetadata>")}),
        OK,
    ),
    "a description of 5 MB": (tiff_bytes({270: (ASCII, "x" * 5_000_000)}), OK),
    "nodata of 100 kB": (tiff_bytes(nodata("9" * 100_000)), {"header-too-large"}),
    "nodata hello": (tiff_bytes(nodata("hello")), OK),
    "nodata 1e400": (tiff_bytes(nodata("1e400")), OK),
    "nodata -0.5 in bytes": (tiff_bytes(nodata("-0.5")), OK),
    "nodata NaN in bytes": (tiff_bytes(nodata("nan")), OK),
    # Other formats in files that are named .tif
    "vrt of passwd": (VRT.format("/etc/passwd").encode(), {"unsupported-format"}),
    "vrt of a URL": (VRT.format("/vsicurl/http://127.0.0.1:9/x.tif").encode(), {"unsupported-format"}),
    "vrt after a byte order mark": (b"\xef\xbb\xbf \n" + VRT.format("a.tif").encode(), {"unsupported-format"}),
    "web service": (
        b"<GDAL_WMS><Service><ServerUrl>http://127.0.0.1:9/</ServerUrl></Service></GDAL_WMS>",
        {"unsupported-format"},
    ),
    "tile index": (b"SQLite format 3\0" + bytes(500), {"unsupported-format"}),
    "vrt after the first bytes of a tiff": (b"II*\0" + VRT.format("/etc/passwd").encode(), {"corrupt"}),
    "two bytes": (b"II", {"unsupported-format"}),
    "the first bytes of a tiff alone": (b"II*\0", {"corrupt"}),
}


def check_all(folder: Path, *, seconds: float = 100) -> dict[str, dict[str, Any]]:
    """The results for all files of a folder, by name, from one process with limited memory."""
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.raster.fuzz", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return {response["name"]: response for response in map(json.loads, process.stdout.splitlines())}


def test_malicious_headers_get_the_right_verdict_quickly(tmp_path: Path) -> None:
    """`ATTACKS` has the allowed errors of each file; with `OK` it must be read without an error."""
    for name, (content, _) in ATTACKS.items():
        (tmp_path / f"{name}.tif").write_bytes(content)

    responses = check_all(tmp_path)

    wrong = {}
    for name, (_, allowed) in ATTACKS.items():
        response = responses[f"{name}.tif"]
        errors = {code.removeprefix("raster.") for code in response["errors"]}
        if bool(errors) != bool(allowed) or not errors <= allowed:
            wrong[name] = errors
    assert not wrong
    assert max(response["seconds"] for response in responses.values()) < 15


@pytest.mark.parametrize("name", ["good", "1e9 by 1e9", "65535 bands", "300000 entries of metadata", "no width"])
def test_the_limited_process_gives_the_same_verdict(tmp_path: Path, name: str) -> None:
    content, expected = ATTACKS[name]
    path = tmp_path / "scene.tif"
    path.write_bytes(content)

    checked = inspect(path, limits=ProcessLimits(memory_mb=1024, cpu_seconds=10, seconds=60))

    assert {finding.code.removeprefix("raster.") for finding in checked.errors} == expected


# Incomplete files


def layouts(folder: Path) -> list[Path]:
    tiles = {"tiled": True, "blockxsize": 256, "blockysize": 256}
    return [
        write_raster(folder / "strips.tif", noise(3, 500, 500)),
        write_raster(folder / "packed.tif", noise(700, 700), compress="lzw", nodata=0),
        write_raster(folder / "tiles.tif", hills(900, 900), compress="deflate", predictor=3, nodata=-1, **tiles),
        write_raster(folder / "big.tif", noise(2, 600, 600, dtype="uint16"), BIGTIFF="YES", interleave="band", **tiles),
        write_raster(folder / "cog.tif", noise(3, 1200, 1200), driver="COG", compress="zstd"),
        write_raster(folder / "jpeg2000.jp2", noise(3, 400, 400), driver="JP2OpenJPEG"),
        write_raster(folder / "imagine.img", noise(400, 400), driver="HFA"),
    ]


def test_a_truncated_file_is_rejected(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    for path in layouts(whole):
        assert check(path).verdict is not Verdict.REJECT
        data = path.read_bytes()
        for tenths in range(1, 10):
            (cut / f"{path.stem} {tenths}{path.suffix}").write_bytes(data[: len(data) * tenths // 10])

    responses = check_all(cut)

    assert len(responses) == 7 * 9
    assert {name for name, response in responses.items() if response["answers"][0] != "reject"} == set()
    assert max(response["seconds"] for response in responses.values()) < 10


@pytest.mark.parametrize("compress", ["deflate", "zstd", "lzw"])
def test_a_damaged_block_in_the_middle_ends_processing_and_leaves_no_file(tmp_path: Path, compress: str) -> None:
    tiles = {"tiled": True, "blockxsize": 512, "blockysize": 512}
    path = write_raster(tmp_path / "scene.tif", noise(3000, 3000, dtype="uint16"), compress=compress, nodata=0, **tiles)
    with rasterio.open(path) as dataset:
        offset, size = (int(dataset.get_tag_item(f"BLOCK_{what}_3_3", "TIFF", bidx=1)) for what in ("OFFSET", "SIZE"))
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(random.Random(3).randbytes(size))

    with pytest.raises(UnfitData) as refused:
        make_cog(path, tmp_path / "cog.tif", output_grid(read_facts(path)), raster_type=RasterType.DEM)

    assert refused.value.code == "raster.corrupt"
    assert "'scene.tif' is damaged" in refused.value.message
    assert str(tmp_path) not in str(refused.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["scene.tif"]
    assert {finding.code for finding in check(path, every_pixel=True).errors} == {"raster.unreadable"}


# Names


NAMES = [
    "new\nline.tif",
    "quo'te\".tif",
    "per%cent%20%s%n.tif",
    "ünï ✓ 地図.tif",
    "-dash.tif",
    "semi;colon&|$(x).tif",
    "back\\slash.tif",
    "<xml>&amp;.tif",
    "star*?[a].tif",
    "a,b=c.tif",
    "GTIFF_DIR:1:a.tif",
    "vsizip",
    "trail ",
    "a" * 250 + ".tif",
]


@pytest.mark.parametrize("name", NAMES)
def test_special_characters_in_a_name_have_no_effect(tmp_path: Path, name: str) -> None:
    path = write_raster(tmp_path / "plain.tif", noise(3, 60, 60), photometric="RGB")
    odd = path.rename(tmp_path / name)

    checked = check(odd)
    result = make_cog(odd, tmp_path / "cog.tif", output_grid(read_facts(odd)), raster_type=RasterType.RGB)

    assert checked.verdict is Verdict.PASS
    assert checked.facts is not None
    assert checked.facts.name.isprintable()
    assert len(checked.facts.name) <= 101
    assert result.band_count == 3
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(["cog.tif", name])


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/scene-\xff.tif")
    Path(path).write_bytes(tiff_bytes())

    checked = inspect(path)

    assert {finding.code for finding in checked.errors} == {"raster.unreadable-file"}
    checked.findings[0].message.encode()


def test_pipes_and_devices_are_rejected_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tif")
    for link, target in {
        "zero.tif": "/dev/zero",
        "one.tif": "two.tif",
        "two.tif": "one.tif",
        "passwd.tif": "/etc/passwd",
    }.items():
        (tmp_path / link).symlink_to(target)
    (tmp_path / "gone.tif").symlink_to("nowhere")
    good = write_raster(tmp_path / "good.tif", noise(3, 60, 60))
    (tmp_path / "link.tif").symlink_to(good)
    expected = {
        tmp_path / "pipe.tif": "raster.not-a-file",
        tmp_path / "zero.tif": "raster.not-a-file",
        tmp_path / "one.tif": "raster.unreadable-file",
        tmp_path / "passwd.tif": "raster.unsupported-format",
        tmp_path: "raster.not-a-file",
        Path("/dev/null"): "raster.not-a-file",
        Path("/proc/self/mem"): "raster.empty",
    }

    start = time.perf_counter()
    codes = {path: {error.code for error in check(path).errors} for path in expected}

    assert codes == {path: {code} for path, code in expected.items()}
    assert time.perf_counter() - start < 2
    assert check(tmp_path / "link.tif").verdict is not Verdict.REJECT
    with pytest.raises(NotFound):
        check(tmp_path / "gone.tif")


def test_gdal_paths_are_refused_before_gdal_opens_them(tmp_path: Path) -> None:
    write_raster(tmp_path / "a.tif", noise(8, 8))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "a.tif", "a.tif")
    places = [
        f"/vsizip/{tmp_path}/a.zip/a.tif",
        f"/vsizip/{{{tmp_path}/a.zip}}/a.tif",
        "/vsicurl/http://127.0.0.1:9/a.tif",
        "/vsistdin/",
        f"/vsisubfile/0_100,{tmp_path}/a.tif",
        "/vsicached?file=/etc/passwd",
        "http://127.0.0.1:9/a.tif",
        "/vsis3/bucket/a.tif",
        "",
        "a\0b",
    ]

    for place in places:
        with pytest.raises(InvalidRequest):
            check(place)
    for prefix in ("DERIVED_SUBDATASET:AMPLITUDE:", "GTIFF_DIR:1:", "GTIFF_RAW:", "NETCDF:"):
        with pytest.raises(NotFound):
            check(f"{prefix}{tmp_path}/a.tif")


def test_a_float_nodata_value_never_hides_integer_data(tmp_path: Path) -> None:
    path = tmp_path / "scene.tif"
    for text in ("-0.5", "nan", "1e400", "-9999", "hello"):
        path.write_bytes(tiff_bytes(nodata(text)))

        result = make_cog(
            path, tmp_path / "cog.tif", output_grid(read_facts(path), "EPSG:32633"), raster_type=RasterType.DEM
        )

        with rasterio.open(result.path) as cog:
            expected = np.frombuffer(PIXELS, "uint8").reshape(SIDE, SIDE)
            assert np.array_equal(cog.read(1), expected)
            assert text == "hello" or (cog.dataset_mask() == 255).all()
