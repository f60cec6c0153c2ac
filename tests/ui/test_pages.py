"""The built pages as a browser gets them: whole, compressed, cached by name, and never anything else of the machine."""

import gzip
import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from dagmaster.ui import routes
from tests.api.serving import app_of

STATIC = Path(routes.__file__).parent / "static"
LARGEST_FIRST_LOAD_BYTES = 300_000


@pytest.fixture(scope="module")
def browser(shared_database: str) -> TestClient:
    app: Starlette = app_of(shared_database)
    return TestClient(app, base_url="http://localhost", follow_redirects=False)


def test_every_path_of_the_pages_is_the_same_document(browser: TestClient) -> None:
    start = browser.get("/ui/")

    assert start.status_code == 200
    assert start.headers["content-type"].startswith("text/html")
    assert [browser.get(path).content for path in ("/ui/jobs", "/ui/jobs/0192", "/ui/assets/x/compare")] == [
        start.content
    ] * 3


def test_the_address_without_its_slash_leads_to_the_pages(browser: TestClient) -> None:
    response = browser.get("/ui?tab=x")

    assert (response.status_code, response.headers["location"]) == (308, "/ui/?tab=x")


def test_pages_run_no_scripts_but_their_own(browser: TestClient) -> None:
    page = browser.get("/ui/")

    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"<script(?![^>]*\bsrc=)", page.text), "a script inside of the page would not run"
    assert not re.search(r"(src|href)=\"(https?:)?//", page.text), "the pages work without the internet"


def test_files_with_a_hash_in_their_name_are_kept_and_the_page_is_asked_for_each_time(browser: TestClient) -> None:
    page = browser.get("/ui/")
    script = re.search(r'src="(/ui/assets/[^"]+\.js)"', page.text)

    assert script is not None
    assert page.headers["cache-control"] == "no-cache"
    assert "immutable" in browser.get(script[1]).headers["cache-control"]


def test_browsers_get_compressed_files_and_others_plain_ones(browser: TestClient) -> None:
    script = re.search(r'src="(/ui/assets/[^"]+\.js)"', browser.get("/ui/").text)
    assert script is not None

    packed = browser.get(script[1], headers={"Accept-Encoding": "gzip, br"})
    plain = browser.get(script[1], headers={"Accept-Encoding": "identity"})

    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content


@pytest.mark.parametrize(
    "path",
    [
        "/ui/assets/missing.js",
        "/ui/../pyproject.toml",
        "/ui/%2e%2e/routes.py",
        "/ui/assets/%2e%2e/%2e%2e/routes.py",
        "/ui/assets/..%2f..%2froutes.py",
        "/ui/assets/..%5c..%5croutes.py",
        "/ui//etc/passwd.txt",
        "/ui/assets/x%00.js",
        "/ui/.built/x.js",
    ],
)
def test_nothing_but_the_built_files_is_served(browser: TestClient, path: str) -> None:
    response = browser.get(path)

    assert response.status_code == 404
    assert b"FastAPI" not in response.content


def test_the_first_load_is_small(browser: TestClient) -> None:
    """What a browser loads before the first page is there: the document, and what it names. Pages come on top."""
    page = browser.get("/ui/")
    named = re.findall(r'(?:src|href)="(/ui/[^"]+)"', page.text)
    jobs = list((STATIC / "assets").glob("jobs-*.js"))

    first = len(gzip.compress(page.content)) + sum(len(gzip.compress(browser.get(path).content)) for path in named)
    with_jobs = first + sum(len(gzip.compress(path.read_bytes())) for path in jobs)

    assert jobs
    assert with_jobs < LARGEST_FIRST_LOAD_BYTES


def test_the_map_library_is_loaded_only_with_a_map(browser: TestClient) -> None:
    page = browser.get("/ui/").text
    large = max((STATIC / "assets").glob("*.js"), key=lambda path: path.stat().st_size)

    assert large.stat().st_size > 500_000, "the map library is the largest file"
    assert large.name not in page


def test_an_installation_without_built_pages_says_so(browser: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_content", lambda name: None)

    response = browser.get("/ui/")

    assert response.status_code == 503
    assert "make ui" in response.text
