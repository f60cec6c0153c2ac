"""`s3://…` and `az://…` as sources of `dagmaster process`, and of jobs if that is allowed."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dagmaster.errors import DagmasterError, NotAllowed, NotFound
from dagmaster.ingest.progress import Bar
from dagmaster.ingest.sources import downloaded, find_sources
from dagmaster.jobs.states import Blame
from dagmaster.settings import Settings
from dagmaster.storage import Zone, open_storage
from dagmaster.testing.trial import run_handler
from tests.cli.processes import call, up
from tests.conftest import fresh_database
from tests.engine.test_raster_jobs import scene
from tests.handlers.test_raster_handlers import ABOUT

pytestmark = [pytest.mark.requirement("S2"), pytest.mark.requirement("X2"), pytest.mark.timeout(180)]

BUCKET = "others-data"


@pytest.fixture
def both(azurite, s3_server, tmp_path, monkeypatch) -> dict[str, str]:
    """Zones are folders; both stores are configured, and have the same object."""
    settings = {**azurite.settings, **s3_server.settings, "DAGMASTER_DATA": str(tmp_path / "data")}
    del settings["STORAGE_BACKEND"]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    file = scene(tmp_path / "made" / "scene.tif", 600, 500)
    for server in (azurite, s3_server):
        storage = open_storage(server.settings_for(tmp_path, silver_container=BUCKET))
        storage.create_containers()
        storage.put_file(storage.location("2024/été 1.tif", zone=Zone.SILVER), file)
    return settings


def settings_of(values: dict[str, str], **others: object) -> Settings:
    names = {name: name if name == "DAGMASTER_DATA" else name.lower() for name in values}
    return Settings(**{names[name]: value for name, value in values.items()} | others)


def test_process_copies_an_object_and_creates_a_map(both, cluster, tmp_path):
    original = hashlib.sha256((tmp_path / "made/scene.tif").read_bytes()).hexdigest()
    with fresh_database(cluster, "template0") as dsn, up(tmp_path / "data", DATABASE_URL=dsn, **both) as running:
        for scheme in ("az", "s3"):
            url = f"{scheme}://{BUCKET}/2024/été 1.tif"
            done = call(
                "process", url, "--dataset", f"from-{scheme}", "--json", "--data", str(tmp_path / "data"), **both
            )
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["cogs"]["count"] == 1
        missing = call("process", f"s3://{BUCKET}/none.tif", "--data", str(tmp_path / "data"), **both)
        forbidden = call(
            "process", f"s3://{BUCKET}/x.tif", "--data", str(tmp_path / "data"), **both, ALLOW_OBJECT_SOURCES="false"
        )
        running.end()

    assert (missing.returncode, forbidden.returncode) == (4, 3)
    assert "there is no object 'none.tif' in 'others-data'" in missing.stderr
    assert "unset ALLOW_OBJECT_SOURCES" in forbidden.stderr
    copies = [path for path in (tmp_path / "data/storage/bronze").rglob("*.tif") if path.is_file()]
    assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in copies} == {original}
    cogs = list((tmp_path / "data/storage/silver").rglob("cogs/*/v0/r1/*.tif"))
    assert len(cogs) == 2


NO_CREDENTIALS = {"s3_access_key_id": None, "s3_secret_access_key": None}


@pytest.mark.parametrize(
    ("url", "others", "code"),
    [
        (f"az://{BUCKET}/none.tif", {}, "source.not-found"),
        (f"s3://{BUCKET}/none.tif", {}, "source.not-found"),
        ("az://never-made/x.tif", {}, "source.not-found"),
        ("s3://never-made/x.tif", {}, "source.not-found"),
        (f"s3://{BUCKET}/2024/été 1.tif", NO_CREDENTIALS, "storage.no-credentials"),
        (
            f"az://{BUCKET}/x.tif",
            {"azure_storage_account_name": None, "azure_storage_account_key": None},
            "source.no-account",
        ),
    ],
)
def test_the_error_for_an_object_that_cannot_be_copied_has_the_reason(both, url, others, code):
    settings = settings_of(both, **others)
    sources = find_sources([url], settings)

    with (
        pytest.raises(DagmasterError) as refused,
        downloaded(sources, settings, open_storage(settings), hidden_progress),
    ):
        pass

    assert isinstance(refused.value, NotFound | NotAllowed)
    assert refused.value.code == code
    assert refused.value.hint
    assert "127.0.0.1" not in str(refused.value)


@contextmanager
def hidden_progress(_title: str, *, is_bytes: bool = True) -> Iterator[Bar]:
    class HiddenBar:
        is_shown = False

        def show(self, done: float, total: float | None = None) -> None:
            assert is_bytes
            assert total is None or done <= total

    yield HiddenBar()


@pytest.mark.parametrize("scheme", ["az", "s3"])
def test_a_job_reads_an_object_in_place_if_that_is_allowed(both, scheme, tmp_path):
    def create_cog(name: str, **others: object):
        source = {"blob_name": f"{scheme}://{BUCKET}/{name}"}
        params = {"source": source, "about": ABOUT, "target_crs": "EPSG:4326"}
        return run_handler("raster.create_cog", params, settings=settings_of(both, **others))

    output = create_cog("2024/été 1.tif", allow_object_sources=True).output
    forbidden = create_cog("2024/été 1.tif")
    missing = create_cog("none.tif", allow_object_sources=True)

    assert output["cog_blob"].endswith(".tif")
    assert forbidden.error["code"] == "source.not-allowed"
    assert (missing.error["code"], missing.blame) == ("source.not-found", Blame.DATA)
    assert not list(Path(tmp_path / "data/storage/bronze").rglob("*.tif")), "the source is not copied"
