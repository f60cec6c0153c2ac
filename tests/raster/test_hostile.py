"""Malicious and damaged files: always a verdict, in time, and never a crash of the caller."""

import json
import random
import resource
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.raster.source.facts import read_facts
from dagmaster.raster.validation import limits
from dagmaster.raster.validation.check import Ceilings, Verdict, check
from dagmaster.raster.validation.limits import ProcessLimits, inspect
from tests.raster.rasters import TRANSFORM, hills, noise, write_raster

pytestmark = pytest.mark.requirement("R2", "X2")

ROOT = Path(__file__).parents[2]
SMALL_TILES = {"tiled": True, "blockxsize": 64, "blockysize": 64}
TILES = {"tiled": True, "blockxsize": 512, "blockysize": 512}


def decompression_bomb(path: Path, side: int = 100_000, *, sparse: bool = False) -> Path:
    """A header whose blocks are all the same few bytes: 100 kB that decompress to 10 GB."""
    shape = {"width": side, "height": side, "count": 1, "dtype": "uint8", "crs": "EPSG:32633", "transform": TRANSFORM}
    with rasterio.open(path, "w", driver="GTiff", compress="deflate", SPARSE_OK=True, **shape, **TILES) as dataset:
        dataset.write(np.ones((512, 512), "uint8"), 1, window=rasterio.windows.Window(0, 0, 512, 512))
    if not sparse:
        with rasterio.open(path) as dataset:
            offset, size = (
                int(dataset.get_tag_item(f"BLOCK_{what}_0_0", "TIFF", bidx=1)) for what in ("OFFSET", "SIZE")
            )
        _point_all_blocks_to(path, offset, size)
    return path


def _point_all_blocks_to(path: Path, offset: int, size: int) -> None:
    data = bytearray(path.read_bytes())
    assert data[:4] == b"II*\0"
    (directory,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, directory)
    for at in range(directory + 2, directory + 2 + 12 * entries, 12):
        tag, kind, count, where = struct.unpack_from("<HHII", data, at)
        if tag in (324, 325):
            value = offset if tag == 324 else size
            data[where : where + count * (4 if kind == 4 else 2)] = (
                struct.pack("<I" if kind == 4 else "<H", value) * count
            )
    path.write_bytes(data)


def codes(checked: Any) -> set[str]:
    return {finding.code for finding in checked.errors}


def test_a_decompression_bomb_is_rejected_without_decompression(tmp_path: Path) -> None:
    path = decompression_bomb(tmp_path / "bomb.tif")
    assert path.stat().st_size < 1_000_000

    start = time.perf_counter()
    checked = check(path)

    assert codes(checked) == {"raster.bomb"}
    assert checked.seen.pixels == 0
    assert time.perf_counter() - start < 2
    assert check(decompression_bomb(tmp_path / "sparse.tif", sparse=True)).verdict is not Verdict.REJECT
    assert check(decompression_bomb(tmp_path / "small.tif", side=3000)).verdict is not Verdict.REJECT


def test_a_header_with_absurd_dimensions_is_rejected_quickly(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "scene.tif", noise(64, 64))
    data = bytearray(path.read_bytes())
    (directory,) = struct.unpack_from("<I", data, 4)
    for at in (directory + 2, directory + 14):  # ImageWidth and ImageLength come first
        struct.pack_into("<HII", data, at + 2, 4, 1, 2_000_000_000)
    path.write_bytes(data)

    start = time.perf_counter()
    responses = {code for checked in (check(path), inspect(path)) for code in codes(checked)}

    assert responses <= {"raster.too-large", "raster.corrupt", "raster.block-too-large", "raster.off-earth"}
    assert responses
    assert time.perf_counter() - start < 10


# In a separate process


def test_the_limited_process_gives_the_same_result(tmp_path: Path) -> None:
    for name, content in {
        "warn": {"values": hills(60, 60)},
        "reject": {"values": noise(3, 60, 60), "crs": None},
    }.items():
        path = write_raster(tmp_path / "scene.tif", **content)

        checked = inspect(path)

        assert checked.verdict == name
        assert repr(checked) == repr(check(path))


def test_the_limited_process_gets_all_parameters(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "scene.tif", noise(60, 60), crs=None, nodata=0)

    checked = inspect(path, source_crs="EPSG:2193", raster_type="dem", ceilings=Ceilings(side=50), every_pixel=True)

    assert checked.facts is not None
    assert checked.facts.crs == "EPSG:2193"
    assert checked.raster_type == "dem"
    assert codes(checked) == {"raster.too-large"}
    with pytest.raises(InvalidRequest, match="not a known CRS"):
        inspect(path, source_crs="nowhere")
    with pytest.raises(InvalidRequest, match="not a raster type"):
        inspect(path, raster_type="holiday picture")
    with pytest.raises(NotFound):
        inspect(tmp_path / "missing.tif")


def test_a_file_that_takes_too_long_is_rejected(tmp_path: Path) -> None:
    path = decompression_bomb(tmp_path / "slow.tif", side=150_000)
    patient = Ceilings(bomb_bytes=10**15)

    start = time.perf_counter()
    by_clock = inspect(path, ceilings=patient, every_pixel=True, limits=ProcessLimits(seconds=2))
    by_processor = inspect(path, ceilings=patient, every_pixel=True, limits=ProcessLimits(cpu_seconds=1))

    assert codes(by_clock) == codes(by_processor) == {"raster.hang"}
    assert time.perf_counter() - start < 20


def test_a_file_that_needs_too_much_memory_is_rejected(tmp_path: Path) -> None:
    values = np.zeros((12_000, 12_000), "uint8")
    tile = {"tiled": True, "blockxsize": 12_000, "blockysize": 12_000}
    path = write_raster(tmp_path / "one block.tif", values, nodata=1, compress="zstd", **tile)
    del values

    assert codes(inspect(path, limits=ProcessLimits(memory_mb=270))) == {"raster.memory"}
    assert inspect(path).verdict is Verdict.WARN


def test_a_file_of_one_large_strip_is_rejected_before_decompression(tmp_path: Path) -> None:
    """GDAL shows it as rows, so its header looks harmless."""
    values = np.zeros((6_000, 6_000), "uint8")
    path = write_raster(tmp_path / "one strip.tif", values, nodata=1, compress="zstd", blockysize=6_000)

    assert codes(check(path, ceilings=Ceilings(block_bytes=10**7))) == {"raster.block-too-large"}
    assert codes(check(path, ceilings=Ceilings(bomb_bytes=10**7))) == {"raster.bomb"}
    assert check(path).verdict is Verdict.WARN
    assert not check(path).has("raster.sparse")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("kill -SEGV $$", "raster.crash"),
        ("exit 1", "raster.crash"),
        ("echo nonsense", "raster.crash"),
        ('echo \'{"checked": {"verdict": "splendid"}}\'', "raster.crash"),
        ("sleep 600", "raster.hang"),
        ("sleep 600 & sleep 600", "raster.hang"),
    ],
)
def test_the_caller_gets_a_result_however_the_process_ends(
    script: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_python = tmp_path / "python"
    fake_python.write_text(f"#!/bin/sh\n{script}\n")
    fake_python.chmod(fake_python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(limits.sys, "executable", str(fake_python))

    start = time.perf_counter()
    checked = inspect(write_raster(tmp_path / "scene.tif", noise(8, 8)), limits=ProcessLimits(seconds=1))

    assert codes(checked) == {code}
    assert time.perf_counter() - start < 5


def test_the_limited_process_has_no_credentials_and_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script in the process writes its environment to a file."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    spy = tmp_path / "spy"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'subprocess_main' in ' '.join(sys.orig_argv):\n"
        f"    open({str(tmp_path / 'environment')!r}, 'w').write(repr(dict(os.environ)))\n"
    )
    monkeypatch.setattr(limits.sys, "path", [str(spy), *sys.path])
    path = write_raster(tmp_path / "scene.tif", noise(600, 600))
    before = sorted(file.name for file in tmp_path.iterdir())

    inspect(path)

    assert "secret" not in (tmp_path / "environment").read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*before, "environment"])


def test_the_limited_process_starts_quickly(tmp_path: Path) -> None:
    """Most of the time is the start of Python and its libraries. CPU time, because the machine may be busy."""
    path = write_raster(tmp_path / "scene.tif", noise(3, 60, 60))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)

    inspect(path)

    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5


# Fuzzing


def bases(folder: Path) -> list[Path]:
    """Layouts, byte orders, compressions and formats; small, so that most damage hits something."""
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        masked = write_raster(
            folder / "mask.tif",
            noise(3, 64, 64),
            after=lambda dataset: dataset.write_mask(noise(64, 64) > 60),
            compress="jpeg",
        )
    return [
        masked,
        write_raster(folder / "strips.tif", noise(3, 70, 90)),
        write_raster(
            folder / "tiles.tif", hills(130, 100), nodata=-9999, compress="deflate", predictor=3, **SMALL_TILES
        ),
        write_raster(
            folder / "big.tif", noise(60, 60, dtype="uint16"), BIGTIFF="YES", ENDIANNESS="BIG", compress="lzw"
        ),
        write_raster(folder / "cog.tif", noise(600, 600, high=4), driver="COG", compress="zstd", nodata=0),
        write_raster(folder / "jpeg2000.jp2", noise(3, 80, 80), driver="JP2OpenJPEG"),
        write_raster(folder / "imagine.img", noise(80, 80), driver="HFA", compress="yes"),
        write_raster(folder / "picture.png", noise(80, 80), driver="PNG", crs=None, transform=None),
    ]


def flip_bits(data: bytearray, dice: random.Random) -> None:
    """Most bits are in the header, where they have the most effect."""
    for _ in range(dice.choice((1, 4, 30))):
        data[dice.randrange(min(len(data), dice.choice((64, 512, len(data)))))] ^= 1 << dice.randrange(8)


def cut(data: bytearray, dice: random.Random) -> None:
    del data[
        dice.choice((1, 4, 8, 9, 16, len(data) // 4, len(data) // 2, len(data) - 1, dice.randrange(1, len(data)))) :
    ]


def overwrite(data: bytearray, dice: random.Random) -> None:
    start = dice.randrange(min(len(data), 600))
    length = dice.randrange(1, 40)
    data[start : start + length] = dice.choice((b"\xff", b"\0", b"\x7f")) * length


def splice(data: bytearray, dice: random.Random) -> None:
    """One part is copied over another, as if tags were swapped or blocks moved."""
    source, target, length = dice.randrange(len(data)), dice.randrange(len(data)), dice.choice((12, 12, 20, 200))
    data[target : target + length] = data[source : source + length]


def swap_tags(data: bytearray, dice: random.Random) -> None:
    """Two entries of a TIFF's first directory exchange their values; other formats are spliced."""
    if data[:4] != b"II*\0":
        splice(data, dice)
        return
    (directory,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, directory)
    one, other = (directory + 2 + 12 * dice.randrange(entries) + 4 for _ in range(2))
    data[one : one + 8], data[other : other + 8] = data[other : other + 8], data[one : one + 8]


DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    flip_bits,
    flip_bits,
    cut,
    overwrite,
    splice,
    swap_tags,
)


def test_every_damaged_file_gets_a_result_in_time(tmp_path: Path) -> None:
    """About 290 files, the same in every run."""
    good, broken = tmp_path / "good", tmp_path / "broken"
    good.mkdir()
    broken.mkdir()
    dice = random.Random(20)
    for base in bases(good):
        for number in range(36):
            data = bytearray(base.read_bytes())
            damage = DAMAGES[number % len(DAMAGES)]
            damage(data, dice)
            (broken / f"{base.stem} {number:02} {damage.__name__}{base.suffix}").write_bytes(data)
    files = sorted(path.name for path in broken.iterdir())

    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.raster.fuzz", str(broken), "EPSG:32633"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    responses = [json.loads(line) for line in process.stdout.splitlines()]
    assert [response["name"] for response in responses] == files, process.stderr[-2000:]
    assert process.returncode == 0
    assert max(response["seconds"] for response in responses) < 10
    verdicts = [response["answers"][0] for response in responses]
    assert verdicts.count("reject") > 100
    assert set(verdicts) - {"reject"}, "some damage is harmless"
    assert sorted(path.name for path in broken.iterdir()) == files  # no other file was written


def test_the_undamaged_files_pass(tmp_path: Path) -> None:
    """Otherwise the fuzzing would prove little."""
    for path in bases(tmp_path):
        checked = check(path, source_crs="EPSG:32633")
        assert checked.verdict is not Verdict.REJECT or path.suffix == ".png"
        assert read_facts(path).width > 0
