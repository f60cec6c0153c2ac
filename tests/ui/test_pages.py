"""The built pages as the server returns them: compressed, with caching headers, and no other files of the machine."""

import gzip
import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from dagmaster.ui import routes
from tests.api.serving import app_of

STATIC = Path(routes.__file__).parent / "static"
MAX_FIRST_LOAD_BYTES = 300_000


@pytest.fixture(scope="module")
def browser(shared_database: str) -> TestClient:
    app: Starlette = app_of(shared_database)
    return TestClient(app, base_url="http://localhost", follow_redirects=False)


def test_every_path_of_the_pages_returns_the_same_document(browser: TestClient) -> None:
    start = browser.get("/ui/")

    assert start.status_code == 200
    assert start.headers["content-type"].startswith("text/html")
    assert [browser.get(path).content for path in ("/ui/jobs", "/ui/jobs/0192", "/ui/assets/x/compare")] == [
        start.content
    ] * 3


def test_the_url_without_a_slash_at_its_end_is_redirected_to_the_pages(browser: TestClient) -> None:
    response = browser.get("/ui?tab=x")

    assert (response.status_code, response.headers["location"]) == (308, "/ui/?tab=x")


def test_pages_may_run_only_their_own_scripts(browser: TestClient) -> None:
    page = browser.get("/ui/")

    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"<script(?![^>]*\bsrc=)", page.text), "the policy would not run an inline script"
    assert not re.search(r"(src|href)=\"(https?:)?//", page.text), "the pages work without the internet"


def test_files_with_a_hash_in_their_name_are_cached_and_the_document_is_requested_each_time(
    browser: TestClient,
) -> None:
    page = browser.get("/ui/")
    script = re.search(r'src="(/ui/assets/[^"]+\.js)"', page.text)

    assert script is not None
    assert page.headers["cache-control"] == "no-cache"
    assert "immutable" in browser.get(script[1]).headers["cache-control"]


def test_files_are_compressed_for_clients_that_accept_it(browser: TestClient) -> None:
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
def test_only_the_built_files_are_served(browser: TestClient, path: str) -> None:
    response = browser.get(path)

    assert response.status_code == 404
    assert b"FastAPI" not in response.content


def compressed(names: set[str]) -> int:
    return sum(len(gzip.compress((STATIC / name).read_bytes())) for name in names)


def needed_by(script: str) -> set[str]:
    """A script and the scripts that it imports before it runs, not those that it loads later (such as MapLibre)."""
    names, missing = set[str](), [script]
    while missing:
        name = missing.pop()
        if name not in names:
            names.add(name)
            imported = re.findall(r'(?:\bfrom|\bimport)\s*"\./([^"]+\.js)"', (STATIC / name).read_text())
            missing += [f"assets/{each}" for each in imported]
    return names


def test_the_first_load_of_every_page_is_small(browser: TestClient) -> None:
    """The first load is the document, the files that it refers to, and the scripts of the page that is opened."""
    named = {"index.html", *re.findall(r'(?:src|href)="/ui/([^"]+)"', browser.get("/ui/").text)}
    sources = Path(__file__).parents[2] / "ui/src/routes.ts"
    pages = re.findall(r'import\("\./pages/(\w+)"\)', sources.read_text())

    sizes = {}
    for page in pages:
        (script,) = (STATIC / "assets").glob(f"{page}-????????.js")
        sizes[page] = compressed(named | needed_by(f"assets/{script.name}"))

    assert {"jobs", "job", "asset"} <= set(sizes)
    assert "assets/virtual" in " ".join(
        needed_by(next((STATIC / "assets").glob("jobs-*.js")).relative_to(STATIC).as_posix())
    )
    assert max(sizes.values()) < MAX_FIRST_LOAD_BYTES, sizes


def test_the_map_library_is_loaded_only_with_a_map(browser: TestClient) -> None:
    page = browser.get("/ui/").text
    large = max((STATIC / "assets").glob("*.js"), key=lambda path: path.stat().st_size)

    assert large.stat().st_size > 500_000, "the map library is the largest file"
    assert large.name not in page


def test_an_installation_without_built_pages_responds_with_503(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_content", lambda name: None)

    response = browser.get("/ui/")

    assert response.status_code == 503
    assert "make ui" in response.text
