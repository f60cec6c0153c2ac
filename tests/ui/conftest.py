"""A running platform with real data, and a browser that looks at it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import numpy as np
import pytest
import rasterio
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from rasterio.transform import from_origin

from tests.cli.processes import up

ARGUMENTS = [
    "--no-sandbox",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@dataclass(frozen=True)
class Platform:
    url: str
    folder: Path
    key: str | None = None

    def get(self, path: str, **query: str) -> httpx2.Response:
        return httpx2.get(f"{self.url}{path}", params=query, headers=self._headers(), timeout=30)

    def post(self, path: str, body: object) -> httpx2.Response:
        return httpx2.post(f"{self.url}{path}", json=body, headers=self._headers(), timeout=30)

    def put(self, path: str, body: object) -> httpx2.Response:
        return httpx2.put(f"{self.url}{path}", json=body, headers=self._headers(), timeout=30)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("platform") / "data"
    variables = {"SERVING_ENABLED": "true", "SERVING_PORT": "0", "API_PORT": "0", "GATEWAY_PORT": "0"}
    with up(folder, **variables) as running:
        yield Platform(running.facts["api_url"], folder)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one module: it runs an event loop, and no other test of the process can run one meanwhile."""
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        yield chromium
        chromium.close()


class Looking:
    """A page, with what its console complained about."""

    def __init__(self, context: BrowserContext, platform: Platform) -> None:
        self.page: Page = context.new_page()
        self.platform = platform
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "console", lambda message: self.complaints.append(message.text) if message.type == "error" else None
        )
        self.page.set_default_timeout(60_000)

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.platform.url}/ui{path}")
        return self.page


@pytest.fixture
def looking(browser: Browser, platform: Platform) -> Iterator[Looking]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    try:
        yield Looking(context, platform)
    finally:
        context.close()


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A colour picture with a red, a green and a blue third, somewhere in Switzerland."""
    path = tmp_path_factory.mktemp("scene") / "thirds.tif"
    pixels = np.zeros((3, 300, 300), np.uint8)
    for band in range(3):
        pixels[band, :, band * 100 : (band + 1) * 100] = 220
    with rasterio.open(
        path,
        "w",
        driver="GTiff",
        width=300,
        height=300,
        count=3,
        dtype="uint8",
        crs="EPSG:2056",
        transform=from_origin(2_600_000, 1_200_000, 10, 10),
    ) as dataset:
        dataset.write(pixels)
    return path
