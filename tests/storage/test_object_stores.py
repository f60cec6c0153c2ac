"""Zones in Azure and S3: large files, tiers, credentials, reads by GDAL, and secrets that must not leak."""

import io
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import httpx2
import numpy as np
import pytest
import rasterio

from dagmaster.errors import Conflict, DagmasterError, InvalidRequest, NotAllowed, NotFound, Unavailable
from dagmaster.observe.redaction import redact
from dagmaster.raster.source.opening import opened
from dagmaster.settings import Settings, load
from dagmaster.storage import Folder, Location, Zone, open_storage
from dagmaster.storage.azure_account import AzureAccount
from dagmaster.storage.parts import PART_BYTES, PARTS_AT_ONCE, part_size, send_parts
from dagmaster.storage.s3 import is_leftover
from dagmaster.storage.store import StorageTier
from tests.object_stores.servers import AZURITE_KEY, length_of, tier_of

pytestmark = pytest.mark.requirement("S2")

SILVER = "silver"
LARGE = PART_BYTES + 1_000_000


@pytest.fixture
def server(object_server):
    return object_server


@pytest.fixture
def storage(object_storage):
    object_storage.create_containers()  # existing containers are kept
    return object_storage


def file_of(folder: Path, data: bytes, name: str = "file") -> Path:
    file = folder / name
    file.write_bytes(data)
    return file


@pytest.mark.requirement("S4")
def test_a_large_file_is_stored_in_parts_and_never_replaced(storage, server, place, tmp_path):
    data = np.random.default_rng(1).bytes(LARGE)
    file, other = file_of(tmp_path, data), file_of(tmp_path, data[::-1], "other")
    before = len(server.requests())

    first = storage.put_file(place("large"), file, create_only=True)
    parts = [each for each in server.requests()[before:] if each.method == "PUT"]
    again = storage.put_file(place("large"), file, create_only=True)
    with pytest.raises(Conflict) as refused:
        storage.put_file(place("large"), other, create_only=True)
    copy = tmp_path / "copy"
    storage.get_file(place("large"), copy)

    assert len(parts) >= 2
    assert (first.is_new, again.is_new, again.etag) == (True, False, first.etag)
    assert refused.value.code == "storage.taken"
    assert copy.read_bytes() == data
    assert storage.head(place("large")).etag == first.etag
    assert storage.sha256(place("large")) == first.sha256


@pytest.mark.requirement("S4")
def test_one_of_two_concurrent_large_uploads_succeeds(storage, place, tmp_path):
    files = [file_of(tmp_path, bytes([number]) * LARGE, f"{number}") for number in range(2)]
    start = threading.Barrier(2)
    # Both have checked that there is no object: only the commit can decide.
    store = storage._stores[Zone.SILVER]

    def write(file: Path) -> str:
        with file.open("rb") as content:
            start.wait()
            try:
                stored = store._write(place("race"), content, LARGE, True, StorageTier.HOT)
            except Conflict:
                return "conflict"
            return stored.sha256

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(write, files))

    assert sorted(result == "conflict" for result in results) == [False, True]
    assert storage.sha256(place("race")) in results


@pytest.mark.requirement("R6")
@pytest.mark.parametrize("size", [10, LARGE], ids=["small", "large"])
def test_objects_can_be_stored_in_the_cool_tier(storage, place, tmp_path, size):
    file = file_of(tmp_path, b"x" * size)

    storage.put_file(place("cool"), file, create_only=True, tier=StorageTier.COOL)
    storage.put_file(place("hot"), file, create_only=True)

    assert tier_of(storage, place("cool")) in ("Cool", "STANDARD_IA")
    assert tier_of(storage, place("hot")) in ("Hot", None, "STANDARD")


def test_abandoned_uploads_are_removed_after_a_day(s3_server, tmp_path):
    storage = open_storage(s3_server.settings_for(tmp_path))
    storage.create_containers()
    client = storage._stores[Zone.SILVER]._backend._client
    client.create_multipart_upload(Bucket=SILVER, Key="given-up")  # moto reports a start time years ago
    now = datetime.now(UTC)

    storage.remove_leftovers()

    assert not client.list_multipart_uploads(Bucket=SILVER).get("Uploads")
    assert not is_leftover(now - timedelta(hours=23), now)
    assert is_leftover(now - timedelta(hours=25), now)


def test_a_failed_part_ends_the_upload_and_leaves_no_object(storage, place, tmp_path, monkeypatch):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            if self.tell() >= PART_BYTES:
                raise OSError("the disk is gone")
            return super().read(size)

    store = storage._stores[Zone.SILVER]
    with pytest.raises(OSError, match="disk"):
        store._write(place("broken"), Broken(b"x" * LARGE), LARGE, True, StorageTier.HOT)

    assert not storage.exists(place("broken"))


@pytest.mark.parametrize(
    ("size", "expected"), [(1, PART_BYTES), (100_001 * PART_BYTES, 17 * 1024 * 1024), (10_000, PART_BYTES)]
)
def test_the_number_of_parts_is_limited_for_any_size(size, expected):
    assert part_size(size, 50_000) == expected
    assert -(-size // part_size(size, 50_000)) <= 50_000


def test_few_parts_are_in_memory_at_once():
    """A part is in memory from the moment at which reading it begins, until it was sent."""
    lock = threading.Lock()
    held = most = 0

    def hold(change: int) -> None:
        nonlocal held, most
        with lock:
            held += change
            most = max(most, held)

    class Content(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            hold(1)
            part = super().read(size)
            if not part:
                hold(-1)
            return part

    def send(number: int, _part: bytes) -> int:
        time.sleep(0.01)
        hold(-1)
        return number

    results, _, size = send_parts(Content(b"x" * 1000), 10, send)

    assert (results, size) == (list(range(1, 101)), 1000)
    assert (held, most) == (0, PARTS_AT_ONCE)


@pytest.fixture
def raster(tmp_path) -> Path:
    """18 MB in blocks that do not compress."""
    file = tmp_path / "raster.tif"
    values = np.random.default_rng(1).integers(0, 60_000, (1, 3072, 3072), dtype="uint16")
    options = {"tiled": True, "blockxsize": 512, "blockysize": 512, "crs": "EPSG:4326"}
    transform = rasterio.transform.from_bounds(0, 0, 1, 1, 3072, 3072)
    with rasterio.open(
        file, "w", driver="GTiff", width=3072, height=3072, count=1, dtype="uint16", transform=transform, **options
    ) as target:
        target.write(values)
    return file


def test_gdal_reads_ranges_of_an_object_and_makes_no_copy(storage, server, place, raster):
    location = place("été #1.tif")
    storage.put_file(location, raster)
    before = len(server.requests())

    path = storage.gdal_path(location)
    with opened(path, remote=True) as dataset:
        pixels = dataset.read(1, window=((1000, 1100), (1000, 1100)))
    reads = [each for each in server.requests()[before:] if each.method == "GET"]
    with rasterio.open(raster) as dataset:
        expected = dataset.read(1, window=((1000, 1100), (1000, 1100)))

    assert (pixels == expected).all()
    assert path.startswith(("/vsiaz/silver/", "/vsis3/silver/"))
    assert "sig=" not in path
    assert reads
    assert all(each.range for each in reads), reads
    assert sum(map(length_of, reads)) < raster.stat().st_size / 4


def test_a_replaced_object_of_the_bronze_zone_is_read_again(storage, place, raster, tmp_path):
    location = place("replaced.tif", Zone.BRONZE)
    storage.put_file(location, raster)
    with opened(storage.gdal_path(location), remote=True) as dataset:
        first = dataset.read(1, window=((0, 10), (0, 10)))
    with rasterio.open(raster, "r+") as dataset:
        dataset.write(np.zeros((1, 3072, 3072), "uint16"))
    storage.put_file(location, raster)

    with opened(storage.gdal_path(location), remote=True) as dataset:
        second = dataset.read(1, window=((0, 10), (0, 10)))

    assert first.any()
    assert not second.any()


def managed(azurite, identity_service, folder: Path, **others) -> Settings:
    """Settings as in Azure: no key, but tokens of a managed identity."""
    return azurite.settings_for(
        folder, azure_storage_account_key=None, identity_endpoint=identity_service.url, **others
    )


@pytest.fixture
def managed_storage(azurite, identity_service, tmp_path):
    storage = open_storage(managed(azurite, identity_service, tmp_path))
    storage.create_containers()
    return storage


@pytest.mark.requirement("S3")
def test_a_managed_identity_is_enough_for_all_operations_of_a_zone(managed_storage, identity_service, place, raster):
    storage = managed_storage

    storage.put(place("small"), b"small", create_only=True)
    storage.put_file(place("raster.tif"), raster, create_only=True)
    with opened(storage.gdal_path(place("raster.tif")), remote=True) as dataset:
        shape = dataset.shape
    with pytest.raises(Conflict):
        storage.put(place("small"), b"other", create_only=True)

    assert storage.get(place("small")) == b"small"
    assert shape == (3072, 3072)
    assert {"resource=https%3A%2F%2Fstorage.azure.com%2F" in path for path in identity_service.requests} == {True}
    assert len(identity_service.requests) <= len(Zone)  # one token for each zone, which is kept


@pytest.mark.requirement("S3")
def test_a_signature_allows_reading_one_blob_for_an_hour(azurite, identity_service, place, tmp_path):
    now = [datetime.now(UTC)]
    settings = managed(azurite, identity_service, tmp_path)
    storage = open_storage(settings)
    storage.create_containers()
    storage.put(place("mine"), b"0123456789")
    storage.put(place("other"), b"secret")
    account = AzureAccount.of(settings, Zone.SILVER)
    account._clock = lambda: now[0]

    def status(method: str, name: str, sas: str) -> int:
        headers = {"x-ms-blob-type": "BlockBlob"} if method == "PUT" else {"Range": "bytes=0-3"}
        url = f"{account.endpoint}/{place(name).path}?{sas}"
        return account._http().request(method, url, headers=headers).status_code

    sas, expiry = account.sas(place("mine"), "r")
    now[0] -= timedelta(hours=1, minutes=1)
    expired, _ = account.sas(place("mine"), "r")

    assert status("GET", "mine", sas) == 206
    assert status("PUT", "mine", sas) == status("DELETE", "mine", sas) == 403
    assert status("GET", "other", sas) == 403
    assert status("GET", "mine", expired) == 403
    assert timedelta(minutes=59) < expiry - datetime.now(UTC) <= timedelta(hours=1)


@pytest.mark.requirement("S3")
def test_signatures_are_renewed_before_they_could_expire_during_a_read(azurite, place, tmp_path, monkeypatch):
    storage = open_storage(azurite.settings_for(tmp_path))
    backend = storage._stores[Zone.SILVER]._backend

    first, again = backend._signature(place("a")), backend._signature(place("a"))
    monkeypatch.setattr("dagmaster.storage.azure.MIN_LEFT", timedelta(hours=1, minutes=1))
    monkeypatch.setattr(backend._account, "_clock", lambda: datetime.now(UTC) + timedelta(seconds=2))
    renewed = backend._signature(place("a"))

    assert first == again != renewed


@pytest.mark.requirement("S3")
@pytest.mark.requirement("X3")
def test_no_signature_and_no_key_is_in_a_log_or_an_error(managed_storage, place, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    storage = managed_storage
    storage.put(place("x.tif"), b"no raster")
    backend = storage._stores[Zone.SILVER]._backend
    texts: list[str] = []

    def collect_texts_of_error(call) -> None:
        with pytest.raises((DagmasterError, rasterio.errors.RasterioError)) as refused:
            call()
        error: BaseException | None = refused.value
        while error is not None:
            texts.extend([str(error), repr(error), repr(getattr(error, "facts", ""))])
            error = error.__cause__ or error.__context__

    collect_texts_of_error(lambda: storage.get(place("none")))
    collect_texts_of_error(lambda: read(storage.gdal_path(place("x.tif"))))
    collect_texts_of_error(lambda: read(storage.gdal_path(place("none.tif"))))
    signature = backend._signature(place("x.tif"))
    # A signature that is not valid for reading, and a store that is no longer available.
    backend._signatures[place("x.tif")] = signature.replace("sp=r", "sp=w"), datetime.now(UTC) + timedelta(hours=1)
    collect_texts_of_error(lambda: read(storage.gdal_path(place("x.tif"))))
    backend._account.endpoint = "https://127.0.0.1:9/devstoreaccount1"
    collect_texts_of_error(lambda: storage.put(place("y"), b"x"))
    texts += [caplog.text, *capfd.readouterr(), repr(storage), repr(backend), repr(vars(backend._account))]

    secrets = [part for part in signature.split("&") if part.startswith("sig=")] + ["eyJ", AZURITE_KEY]
    assert not [secret for secret in secrets for text in texts if secret in redact(text)]
    assert not [text for text in texts[:-1] if "sig=" in text], "even before redaction"


def read(path: str) -> None:
    with opened(path, remote=True):
        pass


def test_a_missing_container_is_reported_by_name(storage, server, tmp_path):
    missing = Location(Zone.SILVER, "never-made", "x")

    with pytest.raises(NotFound) as no_container:
        storage.put(missing, b"x")
    with pytest.raises(NotFound):
        storage.get(missing)

    assert no_container.value.code == "storage.no-container"
    assert list(storage.list(Folder(Zone.SILVER, "never-made"))) == []


def test_a_wrong_key_is_reported_as_not_allowed(azurite, place, tmp_path):
    wrong = open_storage(azurite.settings_for(tmp_path, azure_storage_account_key="d3Jvbmc="))
    with pytest.raises(NotAllowed) as refused:
        wrong.get(place("x"))
    with pytest.raises(NotAllowed):
        wrong.put(place("x"), b"x")

    assert refused.value.code == "storage.not-allowed"
    assert refused.value.hint


def test_credentials_are_read_from_the_usual_places_of_aws(s3_server, place, tmp_path, monkeypatch):
    profile = file_of(tmp_path, b"[team]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = s\n", "credentials")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    monkeypatch.setenv("AWS_PROFILE", "team")
    storage = open_storage(s3_server.settings_for(tmp_path, s3_access_key_id=None, s3_secret_access_key=None))
    storage.create_containers()

    storage.put(place("x"), b"x")
    storage.put_file(place("large"), file_of(tmp_path, b"x" * LARGE))

    assert storage.get(place("x")) == b"x"
    assert storage._stores[Zone.SILVER]._backend._gdal_settings()["AWS_ACCESS_KEY_ID"] == "AKIDPROFILE"


def test_zones_can_be_in_different_stores(azurite, s3_server, tmp_path):
    both = {**azurite.settings, **s3_server.settings, "STORAGE_BACKEND": "folder"}
    settings = load(
        DAGMASTER_DATA=str(tmp_path),
        **{name.lower(): value for name, value in both.items()},
        bronze_backend="azure",
        external_backend="s3",
    )
    storage = open_storage(settings)
    storage.create_containers()
    job = UUID("01890000-0000-7000-8000-000000000009")
    bronze, external = storage.location("a.bin"), storage.location("a.bin", zone=Zone.EXTERNAL)

    storage.put(bronze, b"data")
    storage.copy(bronze, external, job)

    assert storage.get(external) == b"data"
    assert [storage.display_path(each).partition(":")[0] for each in (bronze, external)] == ["az", "s3"]
    assert (tmp_path / "storage/silver").exists()  # because of the scratch folder of the copy


def test_an_upload_is_published_as_an_object(storage, place):
    upload = UUID("01890000-0000-7000-8000-00000000000a")
    writer = storage.uploads.open(upload)
    writer.write(b"some bytes")
    stored = writer.publish(place("upload", Zone.BRONZE))
    again = writer.publish(place("upload", Zone.BRONZE))
    writer.remove()
    writer.close()

    assert storage.get(place("upload", Zone.BRONZE)) == b"some bytes"
    assert (stored.is_new, again.is_new) == (True, False)


@pytest.mark.requirement("X2")
def test_objects_can_be_given_by_url_only_if_that_is_allowed(storage, server, place, tmp_path):
    storage.put(place("x.tif"), b"x")
    url = storage.display_path(place("x.tif"))
    allowed = open_storage(server.settings_for(tmp_path, allow_object_sources=True))

    with pytest.raises(NotAllowed) as refused:
        storage.find_source(url)
    source = allowed.find_source(url)

    assert refused.value.code == "source.not-allowed"
    assert (source.name, source.is_remote, source.location) == ("x.tif", True, None)
    for bad in ("s3://", "s3://bucket", "az:///x", "s3://UPPER/x", "s3://bucket/../x", "az://a b/x"):
        with pytest.raises(InvalidRequest):
            allowed.find_source(bad)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"storage_backend": "azure"}, "AZURE_STORAGE_ACCOUNT_NAME is required"),
        ({"azure_storage_account_name": "acme", "azure_storage_account_key": "k"}, "devstoreaccount1 only"),
        ({"storage_backend": "azure", "azure_storage_account_name": "Acme"}, "AZURE_STORAGE_ACCOUNT_NAME"),
        ({"azure_storage_endpoint": "https://example.org"}, "AZURE_STORAGE_ENDPOINT"),
        ({"s3_access_key_id": "a"}, "S3_SECRET_ACCESS_KEY"),
        ({"storage_backend": "tape"}, "folder, azure, s3"),
        (
            {
                "storage_backend": "azure",
                "azure_storage_account_name": "acme",
                "azure_storage_endpoint": "http://10.0.0.1/{account}",
            },
            "https",
        ),
        (
            {
                "storage_backend": "azure",
                "azure_storage_account_name": "acme",
                "bronze_azure_account": "other",
                "bronze_container": "silver",
            },
            "containers with different names",
        ),
    ],
)
def test_invalid_settings_of_stores_are_refused(settings, problem):
    with pytest.raises(InvalidRequest) as refused:
        load(**settings)

    assert problem in refused.value.message


@pytest.mark.parametrize("extra", ["azure", "s3"])
def test_the_error_for_a_missing_package_names_its_extra(extra, tmp_path):
    program = """
import sys
sys.modules.update(dict.fromkeys(["obstore", "botocore", "botocore.exceptions", "rasterio"]))
from dagmaster.errors import InvalidRequest
from dagmaster.settings import load
from dagmaster.storage import open_storage
open_storage(load())
try:
    open_storage(load(storage_backend=sys.argv[1], azure_storage_account_name="acme"))
except InvalidRequest as error:
    print(error.code, error.hint)
"""
    result = subprocess.run(
        [sys.executable, "-c", program, extra], capture_output=True, text=True, check=True, cwd=tmp_path
    )

    assert result.stdout.strip() == f"extra.missing pip install 'dagmaster[{extra}]'", result.stderr


def test_an_unreachable_store_is_reported_as_unavailable(tmp_path, monkeypatch):
    monkeypatch.setattr("dagmaster.storage.azure_account._TIMEOUT", httpx2.Timeout(1.0))
    settings = load(
        DAGMASTER_DATA=str(tmp_path),
        storage_backend="azure",
        azure_storage_account_name="devstoreaccount1",
        azure_storage_endpoint="http://127.0.0.1:9/{account}",
        azure_storage_account_key=AZURITE_KEY,
    )
    with pytest.raises(Unavailable) as refused:
        open_storage(settings).put(Location(Zone.SILVER, "silver", "x"), b"x")

    assert refused.value.code == "storage.unavailable"
    assert "127.0.0.1" not in str(refused.value)


def test_objects_of_other_tools_with_invalid_names_are_not_listed(storage, place):
    location = place("good.tif")
    folder = Folder(Zone.SILVER, "silver", location.blob.rpartition("/")[0])
    storage.put(location, b"x")
    container = storage._stores[Zone.SILVER]._backend.container("silver")
    container.put(f"{folder.path}/bad. ", b"x", use_multipart=False)

    assert [info.location.name for info in storage.list(folder)] == ["good.tif"]
