"""The guide for partners: its commands and its client run against a platform with authentication."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dagmaster.raster.landscape import make_landscape
from tests.cli.processes import call, up
from tests.docs.pages import ROOT, blocks_in

pytestmark = pytest.mark.requirement("G1", "E24")

PAGE = ROOT / "docs/guides/integrate-a-platform.md"


def block(info: str) -> str:
    return "\n".join(each.body for each in blocks_in(PAGE) if each.info == info)


@pytest.mark.timeout(180)
def test_a_partner_can_submit_get_callbacks_and_see_its_published_data(tmp_path: Path) -> None:
    credentials = {"DAGMASTER_CREDENTIALS": str(tmp_path / "credentials.json")}
    settings = {"AUTH_ENABLED": "true", "ALLOW_PRIVATE_WEBHOOKS": "true", "API_PORT": "0", "GATEWAY_PORT": "0"}
    bronze = tmp_path / "data/storage/bronze/bronze/survey"
    files = tmp_path / "files"
    files.mkdir()
    for number in (7, 8):
        make_landscape(files / f"sheet-{number}.tif", 512)
    with up(tmp_path / "data", GATEWAY_ENABLED="true", **settings, **credentials) as platform:
        data = ("--data", str(tmp_path / "data"))

        def dagmaster(*arguments: str) -> str:
            result = call(*arguments, *data, **credentials)
            assert result.returncode == 0, result.stderr
            return result.stdout

        dagmaster(
            "platforms",
            "add",
            "survey",
            "--name",
            "Survey",
            "--required",
            "sheet",
            "--optional",
            "edition",
            "--version-ref",
            "edition",
        )
        key = dagmaster("keys", "create", "survey-portal", "--scope", "b2b", "--platform", "survey").strip()
        (admin,) = json.loads((tmp_path / "credentials.json").read_text()).values()
        rotated = subprocess.run(
            [
                "curl",
                "-sS",
                "--fail-with-body",
                "-X",
                "POST",
                "-H",
                f"X-API-Key: {admin}",
                f"{platform.facts['api_url']}/api/v1/platforms/survey/rotate-secret",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        variables = {
            **os.environ,
            "GATEWAY": platform.facts["gateway_url"],
            "KEY": key,
            "SECRET": json.loads(rotated.stdout)["secret"],
        }
        by_curl = subprocess.run(
            ["bash", "-e", "-c", block("bash")], cwd=files, env=variables, capture_output=True, text=True, check=False
        )
        client = subprocess.Popen(
            [sys.executable, "-c", block("python")], cwd=files, env=variables, stdout=subprocess.PIPE, text=True
        )
        assert client.stdout is not None
        lines = [client.stdout.readline().strip(), client.stdout.readline().strip()]
        assets = json.loads(dagmaster("assets", "ls", "--json"))["assets"]
        (dataset,) = [asset["dataset_id"] for asset in assets if asset["platform_refs"] == {"sheet": "8"}]
        assert re.fullmatch("8-[0-9a-f]{8}", dataset), "as the guide says"
        dagmaster("assets", "approve", dataset, "--clearance", "public")
        output, _ = client.communicate(timeout=60)
        platform.end()

    assert by_curl.returncode == 0, by_curl.stdout + by_curl.stderr
    assert '"state":"finished"' in by_curl.stdout
    for number in (7, 8):
        assert (bronze / f"sheet-{number}.tif").read_bytes() == (files / f"sheet-{number}.tif").read_bytes()
    assert '"dry_run"' in by_curl.stdout
    assert '"request_id":"curl-1"' in by_curl.stdout
    assert lines == ["submitted portal-8", "awaiting_review"]
    assert output.split() == ["approved", "published", "now", "published"]
    assert client.returncode == 0
