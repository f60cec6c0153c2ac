"""Make the pictures of the web pages in docs/pictures, from a platform with generated data.

The data is that of scripts/sample_platform.py. The colours of a picture are reduced to a palette, so that
files stay small.
"""

import argparse
import tempfile
import warnings
from pathlib import Path

import numpy as np
import rasterio
from numpy.typing import NDArray
from playwright.sync_api import Page, expect, sync_playwright
from rasterio.errors import NotGeoreferencedWarning
from rasterio.io import MemoryFile
from sample_platform import Platform, fill, running

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
MAX_BYTES = 150_000
FLAGS = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
PATIENCE_MS = 60_000


def take_pictures(page: Page, platform: Platform, ids: dict[str, str]) -> None:
    """The order matters: the running job has to be shown before it has ended."""
    for name, path in (
        ("job", f"/jobs/{ids['running']}"),
        ("failed-job", f"/jobs/{ids['failed']}"),
        ("jobs", "/jobs"),
        ("asset", f"/assets/{ids['terrain']}"),
        ("compare", f"/assets/{ids['flood']}/compare?from=0&to=1"),
        ("review", "/review"),
    ):
        page.goto(f"{platform.url}/ui{path}")
        page.wait_for_load_state("networkidle" if name != "job" else "load")
        page.wait_for_timeout(4000)
        expect(page.locator(".map-canvas:not([data-drawn])")).to_have_count(0, timeout=PATIENCE_MS)
        save(FOLDER / f"{name}.png", page.screenshot())
        print(f"{name}.png: {(FOLDER / f'{name}.png').stat().st_size // 1000} kB", flush=True)


def save(path: Path, picture: bytes) -> None:
    """Save it as a PNG with a palette of its most frequent colours."""
    warnings.simplefilter("ignore", NotGeoreferencedWarning)
    with MemoryFile(picture) as file, file.open() as source:
        pixels = source.read([1, 2, 3])
    indices, colours = with_palette(pixels)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rasterio.open(
        path,
        "w",
        driver="PNG",
        width=indices.shape[1],
        height=indices.shape[0],
        count=1,
        dtype="uint8",
        ZLEVEL=9,
    ) as target:
        target.write(indices, 1)
        target.write_colormap(1, {index: (*map(int, colour), 255) for index, colour in enumerate(colours)})
    path.with_suffix(".png.aux.xml").unlink(missing_ok=True)
    if path.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{path.name} has {path.stat().st_size} bytes; the limit is {MAX_BYTES}")


def with_palette(pixels: NDArray[np.uint8], count: int = 256) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The palette index of each pixel, and the palette: frequent colours are exact, others become the nearest one."""
    flat = pixels.reshape(3, -1).T.astype(np.int32)
    keys, inverse, counts = np.unique(flat @ [65536, 256, 1], return_inverse=True, return_counts=True)
    colours = np.stack([keys >> 16, (keys >> 8) & 255, keys & 255], axis=1)
    # Photographs have many rare colours: one candidate of each group of similar ones is enough.
    groups = (colours // 32) @ [64, 8, 1]
    frequent = np.argsort(-counts)[: count // 2]
    best = [np.flatnonzero(groups == group)[np.argmax(counts[groups == group])] for group in np.unique(groups)]
    infrequent = [
        index
        for index in sorted(best, key=lambda index: -counts[groups == groups[index]].sum())
        if index not in frequent
    ]
    chosen = np.concatenate([frequent, np.array(infrequent, dtype=np.int64)])[:count]
    palette = colours[chosen]
    nearest = np.empty(len(colours), np.uint8)
    for start in range(0, len(colours), 4096):
        part = colours[start : start + 4096]
        nearest[start : start + 4096] = ((part[:, None] - palette[None]) ** 2).sum(axis=2).argmin(axis=1)
    return nearest[inverse].reshape(pixels.shape[1:]), palette.astype(np.uint8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="pictures-") as folder,
        running(Path(folder)) as platform,
        sync_playwright() as playwright,
    ):
        ids = fill(platform, print)
        browser = playwright.chromium.launch(executable_path=options.chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.set_default_timeout(PATIENCE_MS)
        take_pictures(page, platform, ids)
        browser.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
