"""`dagmaster up` also starts a map server on its own storage and catalogue."""

import json
import os
import signal
import time
import urllib.error
import urllib.request

import pytest

from tests.cli.processes import call, up

pytestmark = pytest.mark.requirement("C2")

MAX_WAIT_SECONDS = 60


def get(url: str) -> dict:
    """The response, as soon as the server responds."""
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        try:
            return json.load(urllib.request.urlopen(url, timeout=MAX_WAIT_SECONDS))
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_platform_serves_maps_and_restarts_the_map_server(tmp_path):
    with up(tmp_path / "data", SERVING_ENABLED="true", SERVING_PORT="0", API_PORT="0") as platform:
        url = platform.facts["serving_url"]
        (child,) = [child for child in platform.facts["children"] if child["role"] == "serving"]
        assert get(f"{url}/readyz")["is_ready"]
        assert get(f"{url}/stac/collections")["collections"] == []
        # UI, API and maps have one address; links name the address of the request.
        one = platform.facts["api_url"]
        assert (platform.facts["maps_url"], platform.facts["ui_url"]) == (one, f"{one}/ui/")
        assert {link["href"].split("/stac")[0] for link in get(f"{one}/stac/collections")["links"]} == {one}

        os.kill(child["pid"], signal.SIGKILL)
        assert get(f"{url}/readyz")["is_ready"]
        assert get(f"{one}/stac/collections")["collections"] == []
        done = call("submit", "hello_world", "-p", "name=You", "--wait", "--json", "--data", str(tmp_path / "data"))

        code, _, stderr = platform.end()
        assert (code, done.returncode) == (0, 0)
        assert "serving 1" in stderr
        assert "Traceback" not in stderr
