"""One running platform with authentication and real data, and one browser, for all tests of this package."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import numpy as np
import pytest
import rasterio
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright
from rasterio.transform import from_origin

from dagmaster.local.embedded import Cluster
from tests.cli.processes import eventually, up

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
    bronze: Path
    key: str

    def get(self, path: str, **query: str) -> httpx2.Response:
        return httpx2.get(f"{self.url}{path}", params=query, headers=self._headers(), timeout=30)

    def post(self, path: str, body: object) -> httpx2.Response:
        return httpx2.post(f"{self.url}{path}", json=body, headers=self._headers(), timeout=30)

    def put(self, path: str, body: object) -> httpx2.Response:
        return httpx2.put(f"{self.url}{path}", json=body, headers=self._headers(), timeout=30)

    def status(self, job: str) -> str:
        return str(self.get(f"/api/v1/jobs/{job}").json()["job"]["status"])

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


@pytest.fixture(scope="package")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("platform")
    credentials = folder / "credentials.json"
    variables = {
        "AUTH_ENABLED": "true",
        "DAGMASTER_CREDENTIALS": str(credentials),
        "BRONZE_FOLDER": str(folder / "bronze"),
        "SERVING_ENABLED": "true",
        **dict.fromkeys(("API_PORT", "SERVING_PORT", "GATEWAY_PORT"), "0"),
    }
    cluster = Cluster.at(folder / "data")
    cluster.remove()  # of a killed run with the same folder; for root, clusters are outside of it
    try:
        with up(folder / "data", **variables) as running:
            (admin,) = json.loads(credentials.read_text()).values()
            yield Platform(running.facts["api_url"], folder / "bronze" / "bronze", admin)
    finally:
        cluster.remove()


@dataclass(frozen=True)
class UserKeys:
    """Keys with fewer permissions than the key of the platform, which has the scope `admin`."""

    viewer: str
    author: str


@pytest.fixture(scope="package")
def user_keys(platform: Platform) -> UserKeys:
    viewer, author = (
        platform.post("/api/v1/keys", {"name": f"the {scope}", "scopes": [scope]}).json()["key"]
        for scope in ("viewer", "author")
    )
    return UserKeys(viewer, author)


@dataclass(frozen=True)
class Catalogue:
    """`asset` has an approved version and one to review; `other` has one to review, which `job` processed."""

    asset: str
    other: str
    job: str
    second_job: str


@pytest.fixture(scope="package", autouse=True)
def submitted(platform: Platform, scene: Path) -> list[dict[str, str]]:
    """Submissions of the scene and of a larger raster. They are processed while tests run that do not need them."""
    with rasterio.open(scene) as source:
        profile, pixels = source.profile, source.read()
    platform.bronze.mkdir(parents=True, exist_ok=True)
    for name, bands in (("first", pixels), ("second", pixels[::-1]), ("single", np.tile(pixels, (1, 2, 1)))):
        profile.update(height=bands.shape[1])
        with rasterio.open(platform.bronze / f"{name}.tif", "w", **profile) as target:
            target.write(bands)
    return [_submit(platform, "thirds", "first.tif", "2024"), _submit(platform, "single", "single.tif", "2024")]


@pytest.fixture(scope="package")
def approved(platform: Platform, submitted: list[dict[str, str]]) -> Catalogue:
    """The first version is approved. The second one, with red and blue exchanged, is still processed."""
    first, other = submitted
    _wait_for(platform, first["job_id"])
    response = platform.post(f"/api/v1/assets/{first['asset_id']}/versions/0/approve", {"clearance_level": "public"})
    assert response.status_code == 200, response.text
    second = _submit(platform, "thirds", "second.tif", "2025")
    return Catalogue(first["asset_id"], other["asset_id"], other["job_id"], second["job_id"])


@pytest.fixture(scope="package")
def catalogue(platform: Platform, approved: Catalogue) -> Catalogue:
    """All three versions are processed."""
    for job in (approved.job, approved.second_job):
        _wait_for(platform, job)
    return approved


def _wait_for(platform: Platform, job: str) -> None:
    eventually(lambda: platform.status(job) == "completed", timeout=240)


def _submit(platform: Platform, dataset: str, file: str, label: str) -> dict[str, str]:
    response = platform.post(
        "/api/v1/submit",
        {
            "platform_id": "local",
            "platform_refs": {"dataset": dataset},
            "version_label": label,
            "source": {"container": "bronze", "blob": file},
            "workflow_id": "process_large_raster",
        },
    )
    assert response.status_code in (200, 201, 202), response.text
    submitted: dict[str, str] = response.json()
    return submitted


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Closed after this package: it runs an event loop, so other tests of the process could not start one."""
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        yield chromium
        chromium.close()


class UserPage:
    """A page of the browser, with the errors that its console reported."""

    def __init__(self, context: BrowserContext, platform: Platform) -> None:
        self.page: Page = context.new_page()
        self.platform = platform
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._collect_error)
        self.page.set_default_timeout(60_000)

    def _collect_error(self, message: ConsoleMessage) -> None:
        """Refused tiles do not count: the map requests tiles again that a busy map server refused."""
        is_refused_tile = "status of 503" in message.text and "/tiles/" in message.location["url"]
        if message.type == "error" and not is_refused_tile:
            self.complaints.append(f"{message.text} {message.location['url']}")

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.platform.url}/ui{path}")
        return self.page

    def move_to(self, path: str) -> Page:
        """Open another page without loading the document again, as a link between pages does."""
        self.page.evaluate(
            """to => {
                history.pushState(null, "", to);
                dispatchEvent(new PopStateEvent("popstate"));
                return new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)));
            }""",
            f"/ui{path}",
        )
        return self.page


@pytest.fixture
def visitor(browser: Browser, platform: Platform) -> Iterator[UserPage]:
    """The page of a user who is not signed in."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    try:
        yield UserPage(context, platform)
    finally:
        context.close()


@pytest.fixture
def admin(visitor: UserPage) -> UserPage:
    """The page of an administrator who is signed in."""
    response = visitor.page.request.post(f"{visitor.platform.url}/api/v1/session", data={"key": visitor.platform.key})
    assert response.ok, response.text()
    return visitor


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raster in Switzerland with three bands: one third of it is red, one green and one blue."""
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
