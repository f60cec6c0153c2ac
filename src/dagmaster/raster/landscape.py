"""An artificial landscape as a GeoTIFF that looks like a satellite scene, for demos and tests; written in seconds.

It has mountains with snow, valleys with rivers, lakes, forests and fields, lit from the north-west, on a footprint that
is tilted against the grid, like that of an orbit. The same seed gives the same pixels.

    noise on a coarse grid ─▶ smooth surfaces by splines, block by block ─▶ ground cover and light ─▶ RGB

It needs memory for the coarse grid and a few blocks, whatever the size.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import ColorInterp
from rasterio.transform import from_origin
from rasterio.windows import Window

from dagmaster.errors import InvalidRequest

Plane = NDArray[np.float32]

CRS = "EPSG:32632"
PIXEL_METRES = 10.0
NODATA = 0
BLOCK = 512
_TEXTURE = 1024
_ORIGIN = (560_000.0, 5_300_000.0)
_TAKEN_AT = "2024-07-15T10:06:00Z"
_STEP = 8  # pixels between two points of the coarse grid
_TILT = 0.13  # of the orbit against north
_PIXELS_OF_RELIEF = 4_400.0  # the distance between large valleys


def make_landscape(
    path: Path, size: int = 10_240, *, seed: int = 11, on_progress: Callable[[float], None] = lambda _: None
) -> None:
    """Write a landscape of `size` × `size` pixels of 10 m, in UTM; about 1.3 bytes a pixel.

    >>> make_landscape(Path("scene.tif"), 1024)
    """
    if size % BLOCK or not 0 < size <= 65_536:
        raise InvalidRequest(f"the size must be a multiple of {BLOCK} pixels, at most 65536", code="landscape.size")
    land = _Land.create(size, seed)
    corners = [(row, col) for row in range(0, size, BLOCK) for col in range(0, size, BLOCK)]
    with rasterio.open(path, "w", **_profile(size)) as file:
        file.colorinterp = (ColorInterp.red, ColorInterp.green, ColorInterp.blue)
        file.update_tags(
            ACQUISITIONDATETIME=_TAKEN_AT,
            TIFFTAG_IMAGEDESCRIPTION="An artificial landscape",
            TIFFTAG_SOFTWARE="dagmaster",
        )
        for done, ((row, col), block) in enumerate(_in_order(land, corners), 1):
            file.write(block, window=Window(col, row, BLOCK, BLOCK))
            on_progress(done / len(corners))


def _profile(size: int) -> dict[str, Any]:
    return {
        "driver": "GTiff",
        "width": size,
        "height": size,
        "count": 3,
        "dtype": "uint8",
        "crs": CRS,
        "nodata": NODATA,
        "transform": from_origin(*_ORIGIN, PIXEL_METRES, PIXEL_METRES),
        "photometric": "RGB",
        "interleave": "pixel",
        "tiled": True,
        "blockxsize": BLOCK,
        "blockysize": BLOCK,
        "compress": "DEFLATE",
        "predictor": 2,
        "zlevel": 1,
        "num_threads": _threads(),
        "bigtiff": "IF_SAFER",
    }


def _in_order(land: "_Land", corners: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], NDArray[np.uint8]]]:
    """Blocks are computed in parallel, a few ahead of the one that is written."""
    ahead: deque[tuple[tuple[int, int], Future[NDArray[np.uint8]]]] = deque()
    with ThreadPoolExecutor(_threads()) as threads:
        for corner in corners:
            ahead.append((corner, threads.submit(land.block, *corner)))
            if len(ahead) > 2 * _threads():
                first, drawn = ahead.popleft()
                yield first, drawn.result()
        while ahead:
            first, drawn = ahead.popleft()
            yield first, drawn.result()


def _threads() -> int:
    return min(8, len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True)
class _Land:
    """Surfaces on the coarse grid, and data that all blocks share."""

    size: int
    height: Plane  # 0 is the valleys' floor, 1 the highest peaks
    stream: Plane  # pixels to the next river, negative on its other side
    damp: Plane  # 0 dry to 1 wet
    grain: Plane  # a repeating texture with details finer than the coarse grid
    grain_light: Plane  # how the slopes of this texture are lit
    cover: NDArray[np.uint8]  # colours by height and dampness

    @classmethod
    def create(cls, size: int, seed: int) -> "_Land":
        random = np.random.default_rng(seed)
        points = size // _STEP + 4
        valleys = _noise(random, points, slope=2.3)
        crests = _noise(random, points, slope=1.7, longest=150)
        ranges = _spread(_noise(random, points, slope=2.6, longest=850))
        rising = np.clip(ranges * 1.9 - 0.75, 0.03, 1.0)
        height = rising * (np.tanh(np.abs(valleys)) + 0.55 * (1 - np.abs(crests)) * np.tanh(np.abs(valleys) * 2))
        height = np.maximum(height, 0) + 0.012 * np.abs(valleys)
        grain = _noise(random, _TEXTURE, slope=1.1, longest=40)
        return cls(
            size,
            (height / np.percentile(height, 99.6)).astype(np.float32),
            _distance(valleys),
            _spread(_noise(random, points, slope=1.9)),
            grain,
            _rise(grain, 1) * 0.75 + _rise(grain, 0) * 0.65,
            _cover(),
        )

    def block(self, row: int, col: int) -> NDArray[np.uint8]:
        """The pixels of one block, band by band."""
        height, damp, stream = (_surface(coarse, row, col) for coarse in (self.height, self.damp, self.stream))
        at = (slice(row % _TEXTURE, row % _TEXTURE + BLOCK), slice(col % _TEXTURE, col % _TEXTURE + BLOCK))
        grain = self.grain[at]
        east, south = _rise(height, 1), _rise(height, 0)
        land = self._ground(height, damp, grain, 3_000 * (east * east + south * south))
        tilled = (height < 0.13 - 0.12 * np.abs(damp - 0.45)) & (east * east + south * south < 7e-5)
        if tilled.any():
            np.copyto(land, _fields(row, col, damp), where=tilled)
        # The sun is in the north-west, half way up.
        rise = east * 0.75 + south * 0.65 + (0.0004 + 0.0012 * np.minimum(height, 1)) * self.grain_light[at]
        land *= np.clip(0.95 + 42 * rise, 0.35, 1.38) * (1 + 0.05 * grain)
        _flood(land, height, np.abs(stream), grain)
        return self._cut(np.clip(land, 1, 255).astype(np.uint8), row, col)

    def _ground(self, height: Plane, damp: Plane, grain: Plane, steep: Plane) -> Plane:
        high = np.clip((height + grain * 0.02) * 255, 0, 255).astype(np.uint8)
        wet = np.clip((damp + grain * 0.06) * 255, 0, 255).astype(np.uint8)
        ground = self.cover[:, high, wet].astype(np.float32)
        bare = np.clip(steep - 0.3, 0, 0.75)
        for band, rock in enumerate((118, 111, 102)):
            ground[band] += bare * (rock - ground[band])
        return ground

    def _cut(self, block: NDArray[np.uint8], row: int, col: int) -> NDArray[np.uint8]:
        """Pixels outside the tilted footprint become nodata."""
        down, across = np.ogrid[row : row + BLOCK, col : col + BLOCK]
        left = self.size * 0.115 - _TILT * down
        right = self.size * 1.025 - _TILT * down
        block[:, (across < left) | (across > right)] = NODATA
        return block


def _noise(random: np.random.Generator, points: int, slope: float, *, longest: float | None = None) -> Plane:
    """Fractal noise that repeats, mean 0, deviation 1: each wave is as strong as its length to the power of `slope`."""
    down, across = np.fft.fftfreq(points)[:, None], np.fft.rfftfreq(points)[None, :]
    wave = np.hypot(down, across)
    wave[0, 0] = 1
    longest = longest or _PIXELS_OF_RELIEF / _STEP
    strength = np.hypot(wave, 1 / longest) ** -slope
    strength[0, 0] = 0
    waves = strength * np.exp(2j * np.pi * random.random(strength.shape))
    noise = np.fft.irfft2(waves, s=(points, points))
    scaled: Plane = (noise / noise.std()).astype(np.float32)
    return scaled


def _spread(noise: Plane) -> Plane:
    """The same surface with all values from 0 to 1 equally frequent."""
    levels = np.quantile(noise, np.linspace(0, 1, 257))
    return np.interp(noise, levels, np.linspace(0, 1, 257)).astype(np.float32)


def _splines() -> Plane:
    """Weights of four neighbouring points for the pixels between them."""
    t = (np.arange(_STEP) + 0.5) / _STEP
    weights = np.array([(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3]) / 6
    return weights.astype(np.float32)


_WEIGHTS = _splines()


def _surface(coarse: Plane, row: int, col: int) -> Plane:
    """A surface in a block."""
    points = BLOCK // _STEP + 3
    part = coarse[row // _STEP : row // _STEP + points, col // _STEP : col // _STEP + points]
    return _finer(_finer(part.T).T)


def _finer(points: Plane) -> Plane:
    """Each row with pixels instead of points."""
    spans = points.shape[1] - 3
    pixels = points[:, :spans, None] * _WEIGHTS[0]
    for first in (1, 2, 3):
        pixels += points[:, first : first + spans, None] * _WEIGHTS[first]
    finer: Plane = pixels.reshape(points.shape[0], spans * _STEP)
    return finer


def _rise(surface: Plane, axis: int) -> Plane:
    """Differences from each pixel to the next; the last one is repeated."""
    rise = np.diff(surface, axis=axis)
    return np.concatenate([rise, rise.take([-1], axis)], axis)


def _distance(surface: Plane) -> Plane:
    """The distance in pixels to where a coarse surface is 0; accurate only near there."""
    rise = np.hypot(_rise(surface, 0), _rise(surface, 1))
    return (surface / (rise + 0.004) * _STEP).astype(np.float32)


def _flood(land: Plane, height: Plane, away: Plane, grain: Plane) -> None:
    """Lakes where it is lowest, rivers along the valleys; those in the mountains are narrow."""
    depth = np.clip((0.009 - height) * 160, 0, 1)
    width = np.clip(6.5 - 20 * height, 1.2, 6.0)
    stream = np.clip(width + 0.6 - away, 0, 1) * (height < 0.42)
    share = np.minimum(1, np.maximum(depth * 14, stream))
    if share.any():
        glitter = 1 + 0.02 * grain
        for band, (shallow, deep) in enumerate(((62, 18), (112, 50), (118, 74))):
            land[band] += share * ((shallow + depth * (deep - shallow)) * glitter - land[band])


_LONG, _WIDE = np.float32(54), np.float32(30)  # a field, in pixels
_CROPS = np.array(
    [
        (124, 138, 72),
        (158, 150, 88),
        (96, 122, 62),
        (178, 162, 104),
        (140, 118, 84),
        (110, 134, 66),
        (84, 110, 58),
        (168, 158, 78),
        (132, 142, 86),
        (152, 132, 96),
        (104, 126, 74),
        (190, 176, 118),
        (92, 116, 56),
        (120, 104, 78),
        (146, 152, 94),
        (114, 140, 82),
    ],
    np.float32,
).T.copy()


def _fields(row: int, col: int, damp: Plane) -> Plane:
    """Fields in blocks of different orientation, with a hedge or track between them."""
    down = np.arange(row, row + BLOCK, dtype=np.float32)[:, None]
    across = np.arange(col, col + BLOCK, dtype=np.float32)[None, :]
    bend = damp * 150
    quarter = np.floor((across + 0.3 * down + bend) / 400) + 57 * np.floor((down - 0.2 * across + bend) / 330)
    turn = np.sin(quarter * 12.9898) * 0.7
    along = (across * np.cos(turn) + down * np.sin(turn) + bend) / _LONG
    aside = (down * np.cos(turn) - across * np.sin(turn) + bend) / _WIDE
    field_along, field_aside = np.floor(along), np.floor(aside)
    field_number = field_along * 131 + field_aside * 313 + quarter * 1021
    crop = (np.abs(np.sin(field_number)) * 43_758.547).astype(np.uint16) & 15
    edge = np.minimum((along - field_along) * _LONG, (aside - field_aside) * _WIDE) < 1.5
    return np.stack([band[crop] for band in _CROPS]) * np.where(edge, np.float32(0.72), np.float32(1))


def _cover() -> NDArray[np.uint8]:
    """Colours of the ground by height (down) and dampness (across): sand, meadow, forest, alp, rock, snow."""
    height, damp = np.ogrid[0:1:256j, 0:1:256j]
    dry, wet = np.array((150, 146, 94.0)), np.array((100, 122, 66.0))
    colour = dry + (wet - dry) * damp[..., None] + 0 * height[..., None]

    def lay(over: tuple[float, float, float], share: NDArray[Any]) -> None:
        nonlocal colour
        colour = colour + np.clip(share, 0, 1)[..., None] * (np.array(over) - colour)

    lay((46, 74, 42), (damp - 0.42 + height * 0.9) * 9 * (height < 1))
    lay((122, 124, 78), (height - 0.46 - damp * 0.12) * 14)
    lay((124, 116, 106), (height - 0.56 - damp * 0.1) * 9)
    lay((240, 244, 248), (height - 0.72 + damp * 0.1) * 11)
    lay((176, 168, 132), (0.022 - height) * 60)
    table: NDArray[np.uint8] = colour.transpose(2, 0, 1).round().astype(np.uint8)
    return table
