"""The Python client uploads files over unreliable connections, and continues interrupted uploads."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from dagmaster.client import AsyncClient, Client, Conflict, InvalidRequest, NotFound, Unavailable
from dagmaster.errors import DagmasterError
from tests.api.serving import app_of, served
from tests.gateway.kit import key_of

pytestmark = pytest.mark.requirement("G1", "M3")

DATA = random.Random(3).randbytes(700_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scene.tif"
    path.write_bytes(DATA)
    return path


@asynccontextmanager
async def platform(dsn, folder, **settings) -> AsyncIterator[str]:
    async with served(app_of(dsn, storage_folder=folder / "storage", **settings)) as server:
        yield server.url


class CuttingProxy:
    """Forwards bytes, and closes each connection after a while; every third connection gets no response."""

    def __init__(self, url: str, max_bytes: int) -> None:
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port
        self._most_bytes = max_bytes
        self.connections = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()

    async def _serve(self, reader, writer) -> None:
        self.connections += 1
        server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        is_silent = self.connections % 3 == 0
        responses = asyncio.create_task(self._pass_on(server_reader, writer, 0 if is_silent else 10**9))
        await self._pass_on(reader, server_writer, self._most_bytes)
        server_writer.close()
        if not is_silent:
            await responses
        responses.cancel()
        writer.close()

    async def _pass_on(self, reader, writer, max_bytes) -> None:
        passed = 0
        try:
            while (data := await reader.read(16_384)) and passed < max_bytes:
                writer.write(data)
                await writer.drain()
                passed += len(data)
        except OSError:
            pass


async def test_a_file_is_uploaded_completely_over_a_connection_that_is_lost_repeatedly(database, tmp_path, file):
    progress: list[int] = []
    async with platform(database, tmp_path) as url:
        proxy = CuttingProxy(url, 150_000)
        async with proxy.running() as broken, AsyncClient(broken, timeout_seconds=2, attempts=5) as client:
            upload = await client.upload(
                file, on_progress=lambda arrived, _: progress.append(arrived), chunk_bytes=200_000
            )

    assert upload.is_finished
    assert (upload.sha256, upload.size_bytes) == (SHA256, len(DATA))
    assert (tmp_path / "storage/bronze/bronze/local/scene.tif").read_bytes() == DATA
    assert proxy.connections > 4
    assert progress == sorted(progress)
    assert progress[-1] == len(DATA)


async def test_another_process_continues_an_interrupted_upload_and_sends_nothing_twice(database, tmp_path, file):
    class Stopped(Exception):
        pass

    def stop(arrived: int, _total: int) -> None:
        if arrived >= 300_000:
            raise Stopped

    arrived: list[int] = []
    async with platform(database, tmp_path) as url, AsyncClient(url) as client:
        with pytest.raises(Stopped):
            await client.upload(file, on_progress=stop, chunk_bytes=100_000)
        upload = await client.upload(file, on_progress=lambda done, _: arrived.append(done))
        again = await client.upload(file, on_progress=lambda done, _: arrived.append(done))
        uploads = [each async for each in client.uploads()]
        sources = [each async for each in client.sources("local/")]

    assert arrived[0] == 300_000
    assert arrived[-1] == len(DATA)
    assert again == upload
    assert len(uploads) == 1
    assert [(source.blob, source.etag) for source in sources] == [("local/scene.tif", upload.etag)]


async def test_another_file_with_the_same_name_gets_a_suffix_or_is_refused(database, tmp_path, file):
    async with platform(database, tmp_path) as url, AsyncClient(url) as client:
        await client.upload(file)
        file.write_bytes(b"other")
        with pytest.raises(Conflict) as refused:
            await client.upload(file, if_exists="refuse")
        renamed = await client.upload(file)

    assert refused.value.code == "upload.name-taken"
    assert renamed.name == f"scene-{hashlib.sha256(b'other').hexdigest()[:8]}.tif"


async def test_the_upload_fails_if_the_platform_stays_unavailable(database, tmp_path, file):
    async with AsyncClient(attempts=1) as unreachable:
        unreachable.json.connection._find = lambda: "http://127.0.0.1:1"
        with pytest.raises(Unavailable):
            await unreachable.upload(file)
    async with platform(database, tmp_path) as url, AsyncClient(url, attempts=1) as client:

        def leave(arrived: int, _total: int) -> None:
            if arrived:
                client.json.connection._find = lambda: "http://127.0.0.1:1"
                client.json.connection._is_url_known = False

        with pytest.raises(Unavailable) as error:
            await client.upload(file, on_progress=leave, chunk_bytes=100_000, patience_seconds=0.5)

    assert error.value.code == "server.unreachable"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda path: path.unlink(), NotFound),
        (lambda path: path.write_bytes(b""), InvalidRequest),
        (lambda path: (path.unlink(), path.mkdir()), InvalidRequest),
    ],
)
async def test_only_a_file_with_content_can_be_uploaded(database, tmp_path, file, change, error):
    change(file)
    async with platform(database, tmp_path) as url, AsyncClient(url) as client:
        with pytest.raises(error):
            await client.upload(file)


async def test_a_file_that_changes_while_it_is_sent_is_not_stored(database, tmp_path, file):
    def cut(arrived: int, _total: int) -> None:
        if arrived == 100_000:
            file.write_bytes(DATA[:150_000])

    def change(arrived: int, _total: int) -> None:
        if arrived == 100_000:
            file.write_bytes(bytes(len(DATA)))

    async with platform(database, tmp_path) as url, AsyncClient(url) as client:
        with pytest.raises(InvalidRequest, match="shorter"):
            await client.upload(file, name="cut.tif", on_progress=cut, chunk_bytes=100_000)
        file.write_bytes(DATA)
        with pytest.raises(DagmasterError) as refused:
            await client.upload(file, name="changed.tif", on_progress=change, chunk_bytes=100_000)

    assert refused.value.code == "upload.checksum"
    assert not list((tmp_path / "storage").rglob("*.tif"))


async def test_the_blocking_client_uploads_with_its_key(database, tmp_path, file):
    key = await key_of(database, "hub", "b2b", platform="ddh")
    arrived: list[int] = []

    def upload(url):
        with Client(url, key=key) as client:
            info = client.upload(file, on_progress=lambda done, _: arrived.append(done))
            unfinished = client.json.begin_upload({"name": "b.tif", "size_bytes": 5})
            client.cancel_upload(unfinished["upload_id"])
            return info, [source.blob for source in client.sources()], client.upload_info(info.upload_id)

    async with platform(database, tmp_path, auth_enabled=True) as url:
        info, sources, requests = await asyncio.to_thread(upload, url)

    assert sources == [info.source.blob] == ["ddh/scene.tif"]
    assert requests == info
    assert arrived[-1] == len(DATA)
