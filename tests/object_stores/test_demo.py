"""`make demo` with all zones in an object store, chosen by one setting, gives the same pixels as with folders."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from dagmaster.local.embedded import Cluster
from dagmaster.settings import load
from dagmaster.storage import Folder, Zone, open_storage
from tests.cli.processes import COMMAND, environment

pytestmark = [pytest.mark.requirement("S2"), pytest.mark.requirement("S3")]


def demo(output: Path, settings: dict[str, str]) -> str:
    arguments = ["demo", "--size", "2048", "--tile-size", "1024", "--output", str(output)]
    try:
        done = subprocess.run(
            [*COMMAND, *arguments],
            env=environment(**settings, SERVING_PORT="0", LOG_LEVEL="debug"),
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    finally:
        Cluster.at(output).remove()
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def cogs_of(settings) -> dict[str, str]:
    storage = open_storage(settings)
    objects = storage.list(Folder(Zone.SILVER, storage.containers[Zone.SILVER], "cogs/landscape"))
    return {info.location.blob: storage.sha256(info.location) for info in objects}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_demo_gives_the_same_pixels_in_every_store(azurite, s3_server, tmp_path):
    demo(tmp_path / "folder", {})
    expected = cogs_of(load(DAGMASTER_DATA=str(tmp_path / "folder")))
    picture = hashlib.sha256((tmp_path / "folder/preview.png").read_bytes()).hexdigest()

    assert len(expected) == 6
    for name, server in (("azure", azurite), ("s3", s3_server)):
        output = demo(tmp_path / name, server.settings)
        assert cogs_of(server.settings_for(tmp_path, silver_container="dagmaster-demo-silver")) == expected
        assert hashlib.sha256((tmp_path / name / "preview.png").read_bytes()).hexdigest() == picture
        logs = "".join(file.read_text(errors="replace") for file in (tmp_path / name).glob("**/*.log"))
        for secret in ("sig=", "s3-canary-secret", server.settings.get("AZURE_STORAGE_ACCOUNT_KEY", "sig=")):
            assert secret not in output + logs
