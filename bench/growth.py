"""Whether the time of a raster job grows no faster than its pixels, and how two jobs share the platform.

growth    process_large_raster on scenes of one kind and growing size, each on the same platform:
          seconds per gigapixel
together  the first scene alone, then with a second one of the same size that is submitted right after it

Prints seconds and ratios. The scenes are those of bench/raster.py, with every pixel valid.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

from raster import Scene, make_scene, platform, warm

SIDES = "12288,17408,24576,34816"  # 0.15, 0.30, 0.60 and 1.21 gigapixels
GROWTH_LIMIT = 1.2  # the cost of a pixel of the largest scene over that of the smallest
HEAD_START_SECONDS = 1.0

Run = Callable[[Scene, int], float]


def main() -> int:
    options = read_options()
    sides = [int(side) for side in options.sides.split(",")]
    with tempfile.TemporaryDirectory(prefix="growth-bench-", dir=options.folder) as folder:
        workspace = Path(folder)
        with platform(workspace / "platform", options) as run:
            costs = [growth(workspace, run, side, options) for side in sides]
            two_jobs = together(workspace, run, sides[0], options)
    growing = costs[-1]["seconds a gigapixel"] / costs[0]["seconds a gigapixel"]
    holds = growing <= GROWTH_LIMIT
    print(
        f"\ncost of a pixel, largest over smallest: {growing:.2f} (limit {GROWTH_LIMIT}) "
        f"{'holds' if holds else 'MISSED'}"
    )
    print(
        f"two jobs at once: the first took {two_jobs['first over alone']:.2f} times as long as alone, "
        f"both together {two_jobs['both over alone']:.2f} times"
    )
    if options.json:
        options.json.write_text(json.dumps({"growth": costs, "largest over smallest": growing, "together": two_jobs}))
    return 0 if holds else 1


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", default=SIDES, help=f"widths of the scenes in pixels (default: {SIDES})")
    parser.add_argument("--tile-size", type=int, default=4096)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, default=None, help="folder for the scenes (about 8 GB)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


def growth(folder: Path, run: Run, side: int, options: argparse.Namespace) -> dict[str, Any]:
    scene = make_scene(folder, f"side{side}", side)
    warm(scene.source)
    seconds = run(scene, options.tile_size)
    scene.source.unlink()
    gigapixels = side * side / 1e9
    print(f"{gigapixels:5.2f} gigapixels  {seconds:7.1f} s  {seconds / gigapixels:6.1f} s per gigapixel", flush=True)
    return {"gigapixels": gigapixels, "seconds": seconds, "seconds a gigapixel": seconds / gigapixels}


def together(folder: Path, run: Run, side: int, options: argparse.Namespace) -> dict[str, float]:
    scenes = [make_scene(folder, f"twin{number}", side) for number in (1, 2)]
    for scene in scenes:
        warm(scene.source)
    alone = run(scenes[0], options.tile_size)

    def later(scene: Scene) -> float:
        sleep(HEAD_START_SECONDS)
        return run(scene, options.tile_size)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(run, scenes[0], options.tile_size), pool.submit(later, scenes[1])
        times = first.result(), second.result()
    both = max(times[0], HEAD_START_SECONDS + times[1])
    print(f"alone {alone:.1f} s; two at once: the first {times[0]:.1f} s, the second {times[1]:.1f} s", flush=True)
    return {
        "alone": alone,
        "first": times[0],
        "second": times[1],
        "first over alone": times[0] / alone,
        "both over alone": both / alone,
    }


if __name__ == "__main__":
    sys.exit(main())
