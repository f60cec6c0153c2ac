"""Users with different keys in a real browser: signing in, permissions, and actions on versions and jobs."""

import re
from collections.abc import Iterator

import httpx2
import pytest
from playwright.sync_api import Page, Route, expect

from tests.cli.processes import eventually
from tests.ui.browser.conftest import Catalogue, Platform, UserKeys, UserPage

pytestmark = [pytest.mark.requirement("M4"), pytest.mark.alone, pytest.mark.timeout(600)]

PAUSED = """
workflow_id: paused_work
nodes:
  start: {type: start, next: work}
  work: {handler: echo, queue: dag-worker-tasks, next: end}
  end: {type: end}
"""


BROKEN_TILES = """
workflow_id: broken_tiles
nodes:
  start: {type: start, next: list}
  list: {handler: make_list, params: {count: 2}, next: tiles}
  tiles:
    type: fan_out
    source: "{{ nodes.list.output.items }}"
    task: {handler: fail, params: {blame: data, message: the tile is broken}}
    next: end
  end: {type: end}
"""


def _sign_in(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in with a key").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()


def test_a_key_signs_in_and_out(visitor: UserPage, user_keys: UserKeys) -> None:
    page = visitor.open("/assets?state=published")
    page.get_by_label("API key").fill("dgm_0000000000000000_wrong")
    page.get_by_role("button", name="Sign in with a key").click()
    expect(page.get_by_role("alert")).to_be_visible()

    _sign_in(page, user_keys.viewer)
    expect(page.get_by_role("heading", name="Assets")).to_be_visible()
    assert page.url.endswith("/ui/assets?state=published"), "the page that was opened before signing in"
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"]
    assert user_keys.viewer not in cookie["value"]

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    page.context.add_cookies([cookie])  # type: ignore[list-item]
    page.reload()
    expect(page.get_by_label("API key")).to_be_visible()


def test_after_its_session_expired_a_user_signs_in_again_and_continues_at_the_same_page(
    admin: UserPage, platform: Platform
) -> None:
    page = admin.page
    page.route("**/api/v1/stream*", lambda route: route.abort())
    admin.open("/jobs?status=completed")
    expect(page.get_by_role("button", name=re.compile("^completed"))).to_have_attribute("aria-pressed", "true")

    page.context.clear_cookies()  # the page sends no other request: it only tries to open its stream again
    expect(page.get_by_text("Your session has ended")).to_be_visible()
    page.unroute("**/api/v1/stream*")
    _sign_in(page, platform.key)
    expect(page.get_by_role("button", name=re.compile("^completed"))).to_have_attribute("aria-pressed", "true")

    page.route(re.compile("/api/v1/jobs[?].*status=failed"), _refuse)
    page.get_by_role("button", name=re.compile("^failed")).click()  # loads the jobs of another state
    expect(page.get_by_text("Your session has ended")).to_be_visible()
    assert "status=completed&status=failed" in page.url


def _refuse(route: Route) -> None:
    """Respond to this request as the platform does without a session; the other requests of the page succeed."""
    refused = httpx2.get(route.request.url, timeout=30)
    assert refused.status_code == 401, refused.text
    route.fulfill(status=refused.status_code, headers=dict(refused.headers), body=refused.content)


def _changing_buttons(page: Page) -> list[str]:
    changing = re.compile(
        r"^(Approve|Reject|Clearance|Delete|Unpublish|Cancel|Resume|Save|Pause|Limit|Replay|Add|Run again)\b"
    )
    names = page.locator("main button, main a.button").all_inner_texts()
    return [name for name in names if changing.match(name.strip())]


@pytest.mark.usefixtures("approved")
def test_a_viewer_sees_assets_and_no_action_that_would_be_refused(visitor: UserPage, user_keys: UserKeys) -> None:
    page = visitor.open("/")
    _sign_in(page, user_keys.viewer)
    visitor.complaints.clear()

    expect(page).to_have_url(re.compile("/ui/assets$"))
    expect(page.get_by_role("link", name="thirds")).to_be_visible()
    sections = page.get_by_role("navigation", name="Sections").get_by_role("link").all_inner_texts()
    assert [name.strip() for name in sections] == ["dagmaster", "Assets", "API"]
    page.get_by_role("link", name="thirds").click()
    expect(page.get_by_text("Served now")).to_be_visible()
    assert _changing_buttons(page) == []
    assert page.get_by_role("tab").all_inner_texts() == ["Version"], "history and requests are for reviewers"
    expect(page.get_by_text("Version 1")).to_have_count(0)  # it is not reviewed yet
    visitor.move_to("/jobs")
    expect(page.get_by_role("heading", name="You do not have access to this page")).to_be_visible()
    assert visitor.complaints == [], "no request is refused either"


def test_an_author_may_run_workflows_but_not_operate_jobs(
    visitor: UserPage, user_keys: UserKeys, platform: Platform
) -> None:
    job = platform.post("/api/v1/jobs", {"workflow_id": "hello_world"}).json()["job_id"]
    page = visitor.open("/jobs")
    _sign_in(page, user_keys.author)
    visitor.complaints.clear()

    expect(page.get_by_role("row", name=re.compile("hello_world")).first).to_be_visible()
    expect(page.get_by_role("link", name="Run a workflow")).to_be_visible()
    assert page.get_by_role("checkbox").count() == 0, "an author may do nothing with selected jobs"
    for path, landmark in (
        (f"/jobs/{job}", "Timeline"),
        (f"/jobs/{job}?node=greet", "Attempts"),
        (f"/jobs/{job}?tab=logs", "Download"),
        ("/workflows/hello_world", "Versions"),
        ("/system?tab=queues", "container-tasks"),
    ):
        visitor.move_to(path)
        expect(page.locator("main").get_by_text(landmark).first).to_be_visible()
        assert _changing_buttons(page) == [], path
    expect(page.get_by_role("tab", name="Keys")).to_have_count(0)
    assert visitor.complaints == [], "no request is refused either"


def test_two_versions_are_compared_on_the_map_and_in_a_table(admin: UserPage, catalogue: Catalogue) -> None:
    page = admin.open(f"/assets/{catalogue.asset}")
    page.get_by_role("link", name="Compare").click()

    expect(page.get_by_role("heading", name=re.compile("Compare versions"))).to_be_visible()
    table = page.get_by_role("table")
    expect(table).to_contain_text("Version 0")
    expect(table.get_by_role("row").nth(1)).to_be_visible()
    differing = " ".join(table.get_by_role("row").all_inner_texts()).lower()
    assert "crs" not in differing, "both versions have the same CRS"
    assert "statistics" in differing or "mean" in differing, differing
    divider = page.get_by_role("slider")
    before = int(divider.get_attribute("aria-valuenow") or "0")
    divider.press("ArrowLeft")
    expect(divider).to_have_attribute("aria-valuenow", str(before - 2))
    assert admin.complaints == []


def test_the_texts_of_a_layer_are_edited_and_published(
    admin: UserPage, platform: Platform, catalogue: Catalogue
) -> None:
    page = admin.open(f"/assets/{catalogue.asset}?tab=layer")
    page.get_by_label("Title").fill("Thirds of the valley")
    page.get_by_label("Keywords").fill("red, green , blue")
    page.get_by_role("button", name="Save and publish").click()

    expect(page.get_by_text("The layer is published")).to_be_visible()
    layer = platform.get(f"/api/v1/assets/{catalogue.asset}/layers/raster/metadata").json()
    assert (layer["title"], layer["keywords"], layer["is_published"]) == (
        "Thirds of the valley",
        ["red", "green", "blue"],
        True,
    )
    assert "Thirds of the valley" in platform.get("/stac/collections").text
    assert admin.complaints == []


@pytest.fixture
def paused_queue(platform: Platform) -> Iterator[None]:
    """Pauses a queue during the test. Afterwards it is open again, because all tests share this platform."""
    assert platform.put("/api/v1/queues/dag-worker-tasks", {"is_paused": True}).status_code == 200
    yield
    assert platform.put("/api/v1/queues/dag-worker-tasks", {"is_paused": False}).status_code == 200


@pytest.mark.usefixtures("paused_queue")
def test_many_jobs_are_cancelled_after_a_preview(admin: UserPage, platform: Platform) -> None:
    body = {"workflow_id": "paused_work", "definition": PAUSED}
    jobs = [platform.post("/api/v1/jobs", body | {"correlation_id": "bulk"}).json()["job_id"] for _ in range(3)]
    over = platform.post("/api/v1/jobs", {"workflow_id": "hello_world", "correlation_id": "bulk"}).json()["job_id"]
    eventually(lambda: platform.status(over) == "completed", timeout=60)
    page = admin.open("/jobs")
    for job in (*jobs, over):
        page.get_by_label(f"Select job {job}").check()
    page.get_by_role("button", name="Cancel…").click()

    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("3 jobs will be cancelled")
    assert {platform.status(job) for job in jobs} <= {"pending", "running"}, "the preview cancels nothing"
    expect(dialog.get_by_label(re.compile("Reason"))).to_have_attribute("maxlength", "1000")
    dialog.get_by_label(re.compile("Reason")).fill("not needed")
    dialog.get_by_role("button", name="Cancel 3 jobs").click()

    expect(dialog).to_have_count(0)
    expect(page.get_by_text("3 jobs cancelled", exact=True)).to_be_visible()
    eventually(lambda: {platform.status(job) for job in jobs} == {"cancelled"}, timeout=60)
    assert platform.status(over) == "completed"
    assert admin.complaints == []


def test_a_part_of_many_jobs_is_retried_after_a_preview(admin: UserPage, platform: Platform) -> None:
    body = {"workflow_id": "broken_tiles", "definition": BROKEN_TILES}
    jobs = [platform.post("/api/v1/jobs", body).json()["job_id"] for _ in range(2)]
    other = platform.post("/api/v1/jobs", {"workflow_id": "hello_world"}).json()["job_id"]
    eventually(
        lambda: [platform.status(job) for job in (*jobs, other)] == ["failed", "failed", "completed"], timeout=60
    )
    page = admin.open("/jobs")
    for job in (*jobs, other):
        page.get_by_label(f"Select job {job}").check()
    page.get_by_role("button", name="Retry…").click()

    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Name of the node")).to_have_attribute("maxlength", "80")
    dialog.get_by_label("Part", exact=True).select_option("The failed children of a fan-out")
    expect(dialog.locator("datalist option")).to_have_attribute("value", "tiles")
    expect(dialog.get_by_label("Name of the fan-out")).to_have_attribute("maxlength", "64")
    dialog.get_by_label("Name of the fan-out").fill("tiles")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog).to_contain_text("2 jobs will be retried; 2 nodes and 4 children will run again. 1 job cannot")
    expect(dialog.get_by_text("runs again: 2 children of tiles, end")).to_have_count(2)
    dialog.get_by_role("button", name="Retry 2 jobs").click()

    expect(page.get_by_text("2 jobs retried", exact=True)).to_be_visible()
    counts = [platform.get(f"/api/v1/jobs/{job}").json()["job"]["resume_count"] for job in (*jobs, other)]
    assert counts == [1, 1, 0]
    assert admin.complaints == []


@pytest.mark.usefixtures("paused_queue")
def test_a_change_of_a_queue_keeps_what_another_user_changed_meanwhile(admin: UserPage, platform: Platform) -> None:
    page = admin.open("/system?tab=queues")
    row = page.get_by_role("row").filter(has_text="dag-worker-tasks")
    expect(row.get_by_role("button", name="Resume")).to_be_visible()
    page.route("**/api/v1/queues", lambda route: route.abort())  # from now on, the page shows outdated data

    platform.put("/api/v1/queues/dag-worker-tasks", {"is_paused": True, "max_running": 7})
    row.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("dag-worker-tasks is changed")).to_be_visible()
    assert _state_of_queue(platform) == (False, 7)

    row.get_by_role("button", name="Limit…").click()
    page.get_by_label(re.compile("Maximum number")).fill("9")
    page.get_by_role("button", name="Set the limit").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert _state_of_queue(platform) == (False, 9), "the page still shows it as paused"


def _state_of_queue(platform: Platform) -> tuple[bool, int | None]:
    queues = {each["queue"]: each for each in platform.get("/api/v1/queues").json()["items"]}
    return queues["dag-worker-tasks"]["is_paused"], queues["dag-worker-tasks"]["max_running"]


def test_jobs_and_their_nodes_can_be_used_with_the_keyboard_alone(admin: UserPage, catalogue: Catalogue) -> None:
    """After the page is opened, only `keyboard` is used."""
    page, keys = admin.page, admin.page.keyboard
    admin.open("/jobs?workflow=process_large_raster&status=completed")
    table = page.get_by_role("table", name="Jobs")
    expect(table.get_by_role("row").nth(1)).to_be_visible()
    numbers = [row.get_attribute("aria-rowindex") for row in table.get_by_role("row").all()]
    assert numbers == [str(place + 1) for place in range(len(numbers))], "the header row and each job have a number"
    expect(table).to_have_attribute("aria-rowcount", str(len(numbers)))

    _tab_to(page, ".virtual-row a", most=40)
    keys.press("Enter")
    expect(page.locator(".page-head .state")).to_have_text("completed")
    _tab_to(page, "[role=tab]", most=40)
    keys.press("ArrowRight")
    expect(page.get_by_role("tab", name="Nodes")).to_be_focused()
    expect(page.get_by_role("tabpanel", name="Nodes")).to_contain_text("Handler")
    _tab_to(page, "[role=tabpanel] button.link")
    keys.press("Enter")
    expect(page.locator(".drawer")).to_be_focused()
    keys.press("Escape")
    expect(page.locator(".drawer")).to_have_count(0)
    expect(page.locator("[role=tabpanel] button.link").first).to_be_focused()
    assert admin.complaints == []


def test_versions_can_be_reviewed_with_the_keyboard_alone(
    admin: UserPage, platform: Platform, catalogue: Catalogue
) -> None:
    """After the page is opened, only `keyboard` is used."""
    page, keys = admin.page, admin.page.keyboard
    admin.open("/review")
    expect(page.locator(".pick-list button[aria-pressed=true]")).to_contain_text("single")

    keys.press("j")
    expect(page.locator(".pick-list button[aria-pressed=true]")).to_contain_text("version 1")
    keys.press("k")
    _type_a_rejection(page)
    _change_meanwhile(page, platform, catalogue.other)
    with page.expect_response(re.compile("/api/v1/reviews.*limit=50")):  # the queue is loaded again
        keys.press("Enter")
    expect(page.locator("dialog [role=alert]")).to_contain_text("This has changed since you opened it")
    keys.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    admin.complaints.clear()  # the browser reports the refused request

    _type_a_rejection(page)
    keys.press("Enter")
    expect(page.locator(".pick-list li")).to_have_count(1)

    keys.press("a")
    expect(page.locator("dialog")).to_contain_text("Version 1, revision")
    expect(page.locator("dialog select")).to_be_focused()
    _tab_to(page, "dialog button[type=submit]")
    keys.press("Enter")
    expect(page.get_by_text("There are no versions to review")).to_be_visible()

    versions = platform.get(f"/api/v1/assets/{catalogue.asset}").json()["versions"]
    assert {each["version_ordinal"]: each["approval_state"] for each in versions}[1] == "approved"
    (rejected,) = platform.get(f"/api/v1/assets/{catalogue.other}").json()["versions"]
    assert rejected["approval_state"] == "rejected"
    assert admin.complaints == []


def _type_a_rejection(page: Page) -> None:
    """Open the dialog and type a reason. The focus is then on the button that sends the rejection."""
    page.keyboard.press("r")
    expect(page.locator("dialog textarea")).to_be_focused()
    page.keyboard.type("the northern half is missing")
    _tab_to(page, "dialog button[type=submit]")


def _change_meanwhile(page: Page, platform: Platform, asset: str) -> None:
    """Another user changes the asset, and the review queue behind the open dialog is loaded again."""
    with page.expect_response(re.compile("/api/v1/reviews.*limit=50")):
        changed = platform.post(f"/api/v1/assets/{asset}/clear", {"clearance_level": "ouo"})
        assert changed.status_code == 200, changed.text


def _tab_to(page: Page, selector: str, most: int = 20) -> None:
    for _ in range(most):
        if page.evaluate("selector => document.activeElement?.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {selector}")
