"""Complete tasks of users, done with the pages in a real browser on a running platform."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import rasterio
from playwright.sync_api import Page, Route, expect

from tests.cli.processes import eventually
from tests.ui.browser.conftest import Catalogue, Platform, UserPage

pytestmark = [pytest.mark.requirement("M4"), pytest.mark.alone, pytest.mark.timeout(600)]

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

LONG_SLEEP = """
workflow_id: long_sleep
nodes:
  start: {type: start, next: nap}
  nap: {handler: sleep, params: {seconds: 300}, next: end}
  end: {type: end}
"""


def colours_of(page: Page) -> set[str]:
    """The colours among red, green and blue that the map shows, from the pixels of a screenshot."""
    page.locator(".map-canvas[data-drawn]").wait_for()
    picture = page.locator(".map-canvas").screenshot(animations="disabled")
    with rasterio.MemoryFile(picture) as file, file.open() as image:
        pixels = np.moveaxis(image.read([1, 2, 3]), 0, -1).reshape(-1, 3).astype(int)
    names = {"red": (220, 0, 0), "green": (0, 220, 0), "blue": (0, 0, 220)}
    return {name for name, colour in names.items() if (abs(pixels - colour).max(axis=1) < 40).sum() > 200}


def refuse_first_tile(page: Page) -> list[str]:
    """Respond to the first tile with 503, as a busy map server does. The list then contains its URL."""
    refused: list[str] = []

    def respond(route: Route) -> None:
        if refused:
            route.continue_()
        else:
            refused.append(route.request.url)
            route.fulfill(status=503)

    page.route(re.compile(r"/tiles/WebMercatorQuad/\d+/"), respond)
    return refused


def served(platform: Platform) -> set[str]:
    return {each["id"] for each in platform.get("/stac/search", limit="100").json()["features"]}


def test_a_dropped_raster_is_processed_previewed_approved_and_shown(
    admin: UserPage, scene: Path, tmp_path: Path
) -> None:
    before = served(admin.platform)
    file = shutil.copy(scene, tmp_path / "valley.tif")
    page = admin.open("/submit")
    page.set_input_files("input[type=file]", file)
    expect(page.get_by_text("Chosen: local/valley")).to_be_visible()
    expect(page.get_by_text("The file can be processed: rgb, 3 bands, uint8, EPSG:2056")).to_be_visible()

    page.get_by_role("button", name="Check what would happen").click()
    expect(page.get_by_text("The submission would be accepted: new asset")).to_be_visible()
    page.get_by_role("button", name="Submit", exact=True).click()

    expect(page).to_have_url(re.compile("/ui/jobs/"))
    expect(page.locator(".page-head .state")).to_have_text("completed")

    admin.open("/review")
    waiting = page.locator(".pick-list button", has_text="valley")
    waiting.click()
    expect(page.get_by_text("The validation has no findings").or_(page.locator(".findings li").first)).to_be_visible()
    eventually(lambda: colours_of(page) == {"red", "green", "blue"}, timeout=60)
    assert served(admin.platform) == before, "a preview is not served"

    page.keyboard.press("a")
    expect(page.get_by_role("dialog")).to_contain_text("valley")
    page.get_by_label("Who may see it").select_option("ouo")
    page.get_by_role("dialog").get_by_role("button", name="Approve").click()
    expect(waiting).to_have_count(0)

    admin.move_to("/assets")
    refused = refuse_first_tile(page)
    page.get_by_role("link", name=re.compile("valley")).click()
    expect(page.get_by_text("Served now")).to_be_visible()
    eventually(lambda: colours_of(page) == {"red", "green", "blue"}, timeout=60)
    assert refused, "a tile was refused, and requested again"
    assert len(served(admin.platform) - before) == 1
    assert admin.complaints == []


def test_a_failing_job_is_found_understood_and_resumed(admin: UserPage, scene: Path) -> None:
    response = admin.platform.post(
        "/api/v1/jobs", {"workflow_id": "late_file", "definition": BROKEN_UNTIL_THE_FILE_IS_THERE}
    )
    assert response.status_code in (200, 201, 202), response.text

    page = admin.open("/jobs?status=failed")
    page.get_by_role("link", name="late_file").click()
    banner = page.get_by_role("alert")
    expect(banner).to_contain_text("First failure: check")
    expect(banner).to_contain_text("late.tif")
    page.get_by_role("button", name="Show the attempt").click()
    expect(page.locator(".drawer").get_by_text("Attempt 1", exact=True)).to_be_visible()
    page.keyboard.press("Escape")

    admin.platform.bronze.mkdir(parents=True, exist_ok=True)
    shutil.copy(scene, admin.platform.bronze / "late.tif")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("dialog")).to_contain_text("check")
    page.get_by_label(re.compile("Reason")).fill("the file has arrived")
    page.get_by_role("button", name="Resume the job").click()

    expect(page.locator(".page-head .state")).to_have_text("completed")
    job_id = page.url.rpartition("/")[2].partition("?")[0]
    states = {node["node_id"]: node["status"] for node in admin.platform.get(f"/api/v1/jobs/{job_id}").json()["nodes"]}
    assert set(states.values()) == {"completed"}

    admin.open(f"/jobs/{job_id}?node=check")
    attempts = page.locator(".drawer details.attempt")
    expect(attempts).to_have_count(2)
    expect(attempts.first).to_contain_text("Attempt 2")
    expect(attempts.first).to_have_attribute("open", "")
    assert admin.complaints == []


def test_a_file_that_is_not_a_raster_is_refused_as_soon_as_it_is_chosen(admin: UserPage) -> None:
    admin.platform.bronze.mkdir(parents=True, exist_ok=True)
    (admin.platform.bronze / "notes.tif").write_bytes(b"no raster" * 100)

    page = admin.open("/submit")
    page.get_by_role("button", name=re.compile("^notes.tif")).click()

    expect(page.get_by_role("alert")).to_contain_text("The file cannot be processed")
    assert admin.complaints == []


def test_the_page_of_a_cancelled_job_shows_which_worker_acknowledged(admin: UserPage) -> None:
    response = admin.platform.post("/api/v1/jobs", {"workflow_id": "long_sleep", "definition": LONG_SLEEP})
    assert response.status_code in (200, 201, 202), response.text
    page = admin.open(f"/jobs/{response.json()['job_id']}")
    expect(page.get_by_text("Running 1 task")).to_be_visible()

    page.get_by_role("button", name="Cancel").click()
    page.get_by_label(re.compile("Reason")).fill("a mistake")
    page.get_by_role("button", name="Cancel the job").click()

    banner = page.get_by_role("status").filter(has_text="Cancelled by")
    expect(banner).to_contain_text("Reason: a mistake")
    expect(banner).to_contain_text(re.compile("nap, attempt 1: worker .* acknowledged after .*, ended after"))
    expect(page.locator(".page-head .state")).to_have_text(
        ["cancelled"]
    )  # while it was cancelled there were two states, running and cancelling
    assert admin.complaints == []


HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
HOSTILE_WORKFLOW = f"""
workflow_id: hostile
name: {json.dumps(HOSTILE)}
description: {json.dumps(HOSTILE)}
inputs:
  text: {{type: string, default: x, description: {json.dumps(HOSTILE)}}}
nodes:
  start: {{type: start, next: list}}
  list: {{handler: make_list, params: {{count: 1}}, next: each}}
  each:
    type: fan_out
    source: "{{{{ nodes.list.output.items }}}}"
    label: {json.dumps(HOSTILE)}
    task: {{handler: fail, params: {{blame: data, message: "{{{{ inputs.text }}}}"}}}}
    next: end
  end: {{type: end}}
"""


def test_texts_with_html_are_shown_as_plain_text(admin: UserPage) -> None:
    """For error, label, name, input, submitter and ids, on each page that shows them. The error is also long."""
    error = HOSTILE + " a long error" * 5000
    body = {"workflow_id": "hostile", "definition": HOSTILE_WORKFLOW, "inputs": {"text": error}}
    response = admin.platform.post("/api/v1/jobs", body | {"submitted_by": "</td><b>x", "correlation_id": HOSTILE[:60]})
    assert response.status_code in (200, 201, 202), response.text
    job = response.json()["job_id"]
    eventually(lambda: admin.platform.status(job) == "failed", timeout=60)

    admin.open("/")
    for path, shown in (
        (f"/jobs/{job}", "main [role=alert]"),
        (f"/jobs/{job}?tab=nodes&parent=each", ".child-row:not(.head)"),
        (f"/jobs/{job}?tab=events", "main tbody tr"),
        (f"/jobs/{job}?tab=data", "main pre"),
        ("/jobs?workflow=hostile", ".virtual-row"),
        (f"/jobs?q={HOSTILE[:40]}&status=%3Cscript%3E", "main input[type=search]"),
    ):
        page = admin.move_to(path)
        expect(page.locator(shown).first).to_be_visible()
        assert page.locator("img[src=x]").count() == 0, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 1440, path
        assert "owned" not in page.title(), path
    assert admin.complaints == []


def test_a_lost_connection_is_shown_and_restored_automatically(admin: UserPage) -> None:
    page = admin.page
    page.route("**/api/v1/stream*", lambda route: route.abort())
    admin.open("/jobs")

    expect(page.locator(".connection")).to_contain_text("The connection to the platform was lost")
    page.unroute("**/api/v1/stream*")

    expect(page.locator(".connection")).to_have_count(0)
    response = admin.platform.post("/api/v1/jobs", {"workflow_id": "hello_world", "inputs": {"name": "after the loss"}})
    expect(page.get_by_role("row", name=re.compile(f"{response.json()['job_id'][-6:]}.*"))).to_be_visible()


PAGES = [
    "/jobs",
    "/jobs?status=cancelled&q=nothing",
    "/jobs/{job}",
    "/jobs/{job}?tab=nodes",
    "/jobs/{job}?tab=events",
    "/jobs/{job}?tab=data",
    "/jobs/{job}?tab=logs",
    "/jobs/{job}?node=validate",
    "/jobs/00000000-0000-7000-8000-000000000000",
    "/assets",
    "/assets/{asset}",
    "/assets/{asset}?tab=layer",
    "/assets/{asset}?tab=requests",
    "/assets/{asset}?tab=history",
    "/assets/{asset}/compare",
    "/review",
    "/submit",
    "/workflows",
    "/workflows/raster_ingest",
    "/workflows/raster_ingest?tab=run",
    "/workflows/raster_ingest?tab=runs",
    "/workflows/raster_ingest?tab=versions",
    "/workflows?tab=own",
    "/system",
    "/system?tab=queues",
    "/system?tab=leases",
    "/system?tab=dead",
    "/system?tab=janitor",
    "/system?tab=callbacks",
    "/system?tab=commands",
    "/system?tab=database",
    "/system?tab=platforms",
    "/system?tab=keys",
    "/nowhere",
]
AXE = Path(__file__).parents[3] / "ui/node_modules/axe-core/axe.min.js"
FIND_VIOLATIONS = """async part => {
    const root = document.documentElement, chosen = root.dataset.theme, violations = [];
    const rules = {
        light: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"],
        dark: {type: "rule", values: ["color-contrast"]},  // the others do not depend on the theme
    };
    for (const [theme, runOnly] of Object.entries(rules)) {
        root.dataset.theme = theme;
        const result = await axe.run(part, {runOnly, resultTypes: ["violations"], preload: false});
        violations.push(...result.violations.map(each => `${theme} ${each.id}: ${each.nodes[0].html.slice(0, 160)}`));
    }
    root.dataset.theme = chosen;
    return violations;
}"""
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1440, "height": 900}


def problems_of(page: Page, part: str = "html") -> list[str]:
    """What axe finds in a part of the page in both themes, and a problem if the page is wider than a phone."""
    expect(page.locator("h1, h2, [role=alert]").first).to_be_visible()
    expect(page.locator(".skeleton")).to_have_count(0)
    if page.viewport_size == PHONE:  # the size that the previous page ended with comes first, to resize less often
        return _too_wide(page) + _violations(page, part)
    return _violations(page, part) + _too_wide(page)


def _violations(page: Page, part: str) -> list[str]:
    if page.viewport_size != DESKTOP:
        page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    violations: list[str] = page.evaluate(FIND_VIOLATIONS, part)
    return violations


def _too_wide(page: Page) -> list[str]:
    if page.viewport_size != PHONE:
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    width = page.evaluate("() => document.documentElement.scrollWidth")
    return [f"{width} pixels wide on a phone"] if width > PHONE["width"] else []


def test_every_page_is_accessible_in_both_themes_and_fits_a_phone(admin: UserPage, catalogue: Catalogue) -> None:
    admin.open("/")
    problems = []
    for place, path in enumerate(PAGES):
        page = admin.move_to(path.format(job=catalogue.job, asset=catalogue.asset))
        # The frame around the pages is the same for all of them and is checked once.
        problems += [f"{path} {each}" for each in problems_of(page, "main" if place else "html")]

    assert not problems, "\n".join(problems)


def test_the_sign_in_page_is_accessible_in_both_themes_and_fits_a_phone(visitor: UserPage) -> None:
    assert problems_of(visitor.open("/jobs")) == []
