"""stac-api-validator, the test suite of another project, checks all conformance classes that the server declares and
that the suite knows.

The suite runs as a separate program. It loads JSON schemas from the network: errors about an unreachable host are
ignored, and only the checks of `tests/stac` use these schemas then. `KNOWN` lists errors that it reports wrongly.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import start
from tests.serving.assets import Assets
from tests.serving.conftest import _dem, _plain, _scene, _tiled
from tests.serving.test_process import folder_of, wait_for_event

pytestmark = pytest.mark.requirement("C1")

CLASSES = {
    "core": "https://api.stacspec.org/v1.0.0/core",
    "collections": "https://api.stacspec.org/v1.0.0/collections",
    "features": "https://api.stacspec.org/v1.0.0/ogcapi-features",
    "item-search": "https://api.stacspec.org/v1.0.0/item-search",
    "filter": "https://api.stacspec.org/v1.0.0-rc.2/item-search#filter",
    "item-search#sort": "https://api.stacspec.org/v1.0.0/item-search#sort",
    "item-search#fields": "https://api.stacspec.org/v1.0.0/item-search#fields",
    "item-search#query": "https://api.stacspec.org/v1.0.0/item-search#query",
    "features#sort": "https://api.stacspec.org/v1.0.0/ogcapi-features#sort",
    "features#fields": "https://api.stacspec.org/v1.0.0/ogcapi-features#fields",
    "features#query": "https://api.stacspec.org/v1.0.0/ogcapi-features#query",
}
SCHEMA_HOSTS = ("schemas.stacspec.org", "stac-extensions.github.io")
KNOWN = (
    '"collections": "dem"',  # the standard requires an array; stac-fastapi refuses a string
    'body={"fields": null} had',  # null is treated as if the field was not sent
    "response contained 'properties.title', but should have been excluded",  # no standard forbids it as a default field
    "response contained fewer than 5 fields",  # only these were requested
    "had non-matching results: got ['dem 1', 'dem 0']",  # both are among the values of `in`
)
AREA = {"type": "Polygon", "coordinates": [[[10.1, 50.1], [10.9, 50.1], [10.9, 50.9], [10.1, 50.9], [10.1, 50.1]]]}
VALUES = {
    "fields-nested-property": "properties.title",
    "query-comparison-field": "dagmaster:version_ordinal",
    "query-eq-value": "1",
    "query-neq-value": "0",
    "query-lt-value": "1",
    "query-lte-value": "1",
    "query-gt-value": "0",
    "query-gte-value": "1",
    "query-substring-field": "title",
    "query-starts-with-value": "de",
    "query-ends-with-value": "1",
    "query-contains-value": "em",
    "query-in-field": "title",
    "query-in-values": "dem 0,dem 1",
}


@pytest.fixture(scope="module")
def url(shared_catalog, storage, tmp_path_factory):
    """A separate server: the suite sorts by `datetime`, and fails on items that have only an interval."""
    folder = tmp_path_factory.mktemp("validated")
    for make in (_plain, _dem, _scene, _tiled):
        Assets(shared_catalog).publish(*make(storage, folder))
    process = start(
        "serving",
        "--port",
        "0",
        DATABASE_URL=shared_catalog,
        STORAGE_FOLDER=str(folder_of(storage)),
        LOG_FORMAT="json",
        LOG_LEVEL="info",
        DAGMASTER_DATA=str(tmp_path_factory.mktemp("data")),
    )
    try:
        yield wait_for_event(process, "maps are served")["url"]
    finally:
        process.kill()
        process.communicate()


def is_reachable(host: str) -> bool:
    import httpx2

    try:
        httpx2.get(f"https://{host}/", timeout=5)
    except httpx2.HTTPError:
        return False
    return True


def test_stac_api_validator_finds_no_error_in_the_declared_classes(url):
    import httpx2

    claimed = httpx2.get(f"{url}/stac/").json()["conformsTo"]
    assert set(CLASSES.values()) <= set(claimed)
    arguments = [word for name in CLASSES for word in ("--conformance", name)]
    arguments += [word for name, value in VALUES.items() for word in (f"--{name}", value)]
    run = subprocess.run(
        [
            str(Path(sys.executable).with_name("stac-api-validator")),
            *("--root-url", f"{url}/stac/", "--collection", "dem", "--geometry", json.dumps(AREA)),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    report = run.stdout + run.stderr
    _, _, errors = report.partition("\nErrors:")
    assert errors, report[-3000:]
    left_out = (*KNOWN, *(host for host in SCHEMA_HOSTS if not is_reachable(host)))
    unknown = [line for line in errors.splitlines() if line.startswith("- ") and not any(k in line for k in left_out)]
    assert unknown == []
    checked = [line for line in report.splitlines() if "Validating STAC API" in line]
    assert len(checked) >= 7, "the suite ended early"
