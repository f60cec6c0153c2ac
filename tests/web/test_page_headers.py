"""Pages run no inline scripts, load nothing from other hosts, and cannot be embedded by other sites."""

import pytest

from dagmaster.web.page_headers import is_of_ui, page_headers

pytestmark = pytest.mark.requirement("X1")


def test_the_policy_allows_own_files_and_no_inline_scripts():
    headers = page_headers()
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))

    assert "unsafe" not in headers["Content-Security-Policy"]
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["default-src"] == "'self'"
    assert policy["worker-src"] == "'self' blob:"  # MapLibre
    assert policy["img-src"] == "'self' data: blob:"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["object-src"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-cache"


def test_files_with_their_hash_in_the_name_may_be_cached():
    assert page_headers("public, max-age=31536000, immutable")["Cache-Control"].endswith("immutable")


@pytest.mark.parametrize(
    ("path", "is_of"),
    [("/ui", True), ("/ui/", True), ("/ui/jobs/1", True), ("/uix", False), ("/", False), ("/api/v1/ui/", False)],
)
def test_only_paths_below_ui_are_pages_of_the_ui(path, is_of):
    assert is_of_ui(path) is is_of
