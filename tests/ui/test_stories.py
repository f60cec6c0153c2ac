"""What people do with the pages, in a real browser, on a running platform."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import rasterio
from playwright.sync_api import Page, expect

from tests.cli.processes import eventually
from tests.ui.conftest import Looking, Platform

pytestmark = [pytest.mark.requirement("M4"), pytest.mark.alone, pytest.mark.timeout(300)]

BROKEN_UNTIL_THE_FILE_IS_THERE = """
workflow_id: late_file
nodes:
  start: {type: start, next: prepare}
  prepare: {handler: echo, params: {message: ready}, next: check}
  check:
    handler: raster.validate
    params: {container_name: bronze, blob_name: late.tif}
    retry: {max_attempts: 0}
    next: end
  end: {type: end}
"""


def colours_of(page: Page) -> set[str]:
    """Which of red, green and blue the map shows, from the pixels of a screenshot."""
    picture = page.screenshot()
    with rasterio.MemoryFile(picture) as file, file.open() as image:
        pixels = np.moveaxis(image.read([1, 2, 3]), 0, -1).reshape(-1, 3).astype(int)
    names = {"red": (220, 0, 0), "green": (0, 220, 0), "blue": (0, 0, 220)}
    return {name for name, colour in names.items() if (abs(pixels - colour).max(axis=1) < 40).sum() > 200}


def test_a_dropped_raster_is_processed_previewed_approved_and_shown(looking: Looking, scene: Path) -> None:
    page = looking.open("/submit")
    page.set_input_files("input[type=file]", scene)
    expect(page.get_by_text("Chosen: local/thirds")).to_be_visible()

    page.get_by_role("button", name="Check what would happen").click()
    expect(page.get_by_text("It would be accepted: new asset")).to_be_visible()
    page.get_by_role("button", name="Submit", exact=True).click()

    expect(page).to_have_url(re.compile("/ui/jobs/"))
    expect(page.locator(".page-head .state")).to_have_text("completed")

    looking.open("/review")
    expect(page.locator(".pick-list strong")).to_have_count(1)
    expect(page.get_by_text("The validation has no findings").or_(page.locator(".findings li").first)).to_be_visible()
    eventually(lambda: colours_of(page) == {"red", "green", "blue"}, timeout=60)
    assert looking.platform.get("/stac/search").json()["features"] == [], "a preview is not served"

    page.keyboard.press("a")
    page.get_by_label("Who may see it").select_option("ouo")
    page.get_by_role("dialog").get_by_role("button", name="Approve").click()
    expect(page.get_by_text("Nothing waits for review")).to_be_visible()

    looking.open("/assets")
    page.get_by_role("link", name=re.compile("thirds")).click()
    expect(page.get_by_text("Served now")).to_be_visible()
    eventually(lambda: colours_of(page) == {"red", "green", "blue"}, timeout=60)
    assert len(looking.platform.get("/stac/search").json()["features"]) == 1
    assert looking.complaints == []


def test_a_failing_job_is_found_understood_and_resumed(looking: Looking, scene: Path) -> None:
    answer = looking.platform.post(
        "/api/v1/jobs", {"workflow_id": "late_file", "definition": BROKEN_UNTIL_THE_FILE_IS_THERE}
    )
    assert answer.status_code in (200, 201, 202), answer.text

    page = looking.open("/jobs?status=failed")
    page.get_by_role("link", name="late_file").click()
    banner = page.get_by_role("alert")
    expect(banner).to_contain_text("First failure: check")
    expect(banner).to_contain_text("late.tif")
    page.get_by_role("button", name="Show the attempt").click()
    expect(page.locator(".drawer").get_by_text("Attempt 1", exact=True)).to_be_visible()
    page.keyboard.press("Escape")

    _put(looking.platform, scene, "late.tif")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("dialog")).to_contain_text("check")
    page.get_by_label(re.compile("Reason")).fill("the file has arrived")
    page.get_by_role("button", name="Resume the job").click()

    expect(page.locator(".page-head .state")).to_have_text("completed")
    job_id = page.url.rpartition("/")[2].partition("?")[0]
    states = {
        node["node_id"]: node["status"] for node in looking.platform.get(f"/api/v1/jobs/{job_id}").json()["nodes"]
    }
    assert set(states.values()) == {"completed"}
    assert looking.complaints == []


def _put(platform: Platform, scene: Path, name: str) -> None:
    """A file appears in bronze, as when somebody copies it there."""
    (bronze,) = [path for path in platform.folder.rglob("bronze") if path.is_dir()][:1] or [platform.folder / "bronze"]
    place = bronze / "bronze" if (bronze / "bronze").is_dir() else bronze
    shutil.copy(scene, place / name)


def test_hostile_texts_are_shown_as_texts(looking: Looking) -> None:
    hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    answer = looking.platform.post(
        "/api/v1/jobs",
        {
            "workflow_id": "echo_test",
            "inputs": {"message": hostile},
            "submitted_by": "</td><b>x",
            "correlation_id": hostile[:60],
        },
    )
    assert answer.status_code in (200, 201, 202), answer.text

    page = looking.open(f"/jobs/{answer.json()['job_id']}?tab=data")

    expect(page.get_by_text("onerror").first).to_be_visible()
    assert page.locator("main img").count() == 0
    assert "owned" not in page.title()
    looking.open(f"/jobs?q={hostile[:40]}&status=%3Cscript%3E")
    assert "owned" not in page.title()


def test_a_lost_connection_is_shown_and_recovers_by_itself(looking: Looking) -> None:
    page = looking.page
    page.route("**/api/v1/stream*", lambda route: route.abort())
    looking.open("/jobs")

    expect(page.locator(".connection")).to_contain_text("The connection to the platform is lost")
    page.unroute("**/api/v1/stream*")

    expect(page.locator(".connection")).to_have_count(0)
    answer = looking.platform.post("/api/v1/jobs", {"workflow_id": "hello_world", "inputs": {"name": "after the loss"}})
    expect(page.get_by_role("row", name=re.compile(f"{answer.json()['job_id'][-6:]}.*"))).to_be_visible()


PAGES = [
    "/jobs",
    "/assets",
    "/review",
    "/submit",
    "/workflows",
    "/workflows/raster_ingest",
    "/workflows?tab=own",
    "/system",
]
AXE = Path(__file__).parents[2] / "ui/node_modules/axe-core/axe.min.js"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_accessible(looking: Looking, theme: str) -> None:
    page = looking.page
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    problems = []
    for path in PAGES:
        looking.open(path)
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(300)
        page.evaluate(AXE.read_text())
        violations = page.evaluate(
            "() => axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})"
            ".then(result => result.violations.map(each => `${each.id}: ${each.nodes[0].html.slice(0, 160)}`))"
        )
        problems += [f"{path} {problem}" for problem in violations]

    assert not problems, "\n".join(problems)


def test_pages_fit_a_phone(looking: Looking) -> None:
    page = looking.page
    page.set_viewport_size({"width": 390, "height": 844})
    wide = []
    for path in PAGES:
        looking.open(path)
        page.wait_for_load_state("networkidle")
        if page.evaluate("() => document.documentElement.scrollWidth") > 390:
            wide.append(path)

    assert wide == []
