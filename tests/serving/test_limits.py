"""Large images neither block the server nor use up its memory."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from rio_tiler.colormap import cmap
from rio_tiler.models import ImageData
from titiler.core.resources.enums import ImageType
from titiler.core.utils import render_image

from dagmaster.access.caller import ANONYMOUS, Caller
from dagmaster.errors import DagmasterError, Unavailable
from dagmaster.serving import dependencies as deps
from dagmaster.serving import grids, tiles
from dagmaster.serving.encoding import Encoder
from dagmaster.serving.limits import PixelLimits, WorkLimit, client_of
from dagmaster.web.authentication import CALLER, LOCAL_ADMIN, LOCAL_VIEWER
from tests.cli.processes import start
from tests.serving.data import decoded, write_cog
from tests.serving.test_fuzz import POLYGON, VALUES
from tests.serving.test_process import folder_of, wait_for_event

pytestmark = pytest.mark.requirement("C2")


@pytest.fixture(scope="module")
def encoder():
    encoder = Encoder(processes=1)
    yield encoder
    encoder.close()


def image(dtype: str = "uint8", bands: int = 3, size: int = 600) -> ImageData:
    pixels = np.random.default_rng(3).integers(0, 255, (bands, size, size)).astype(dtype)
    mask = np.zeros_like(pixels, bool)
    mask[:, :100] = True
    return ImageData(np.ma.MaskedArray(pixels, mask))


@pytest.mark.parametrize("kind", [ImageType.png, ImageType.jpeg, ImageType.webp, None], ids=str)
@pytest.mark.parametrize(
    "source",
    [
        ("uint8", 3, None, None),
        ("uint16", 1, None, None),
        ("float32", 1, "viridis", [(0, 200)]),
        ("int16", 3, None, [(0, 100), (10, 200), (-5, 5)]),
    ],
)
def test_a_child_process_encodes_the_same_image(encoder, kind, source):
    dtype, bands, colormap, rescale = source
    colors = cmap.get(colormap) if colormap else None

    content, media_type = encoder.render(image(dtype, bands), colors, kind, rescale=rescale)

    expected, expected_type = render_image(image(dtype, bands), colors, kind, rescale=rescale)
    assert media_type == expected_type
    assert np.array_equal(decoded(content), decoded(expected))


def test_other_threads_run_while_a_large_image_is_encoded(encoder):
    """Encoding in the same process would block all threads for 1 to 3 s."""
    rows, columns = np.mgrid[0:2048, 0:2048].astype(np.float32)
    scene = (100 + 80 * np.sin(columns / 50 + rows / 90)).astype(np.uint8)
    scene += np.random.default_rng(1).integers(0, 12, scene.shape, dtype=np.uint8)
    pictures = [ImageData(np.ma.MaskedArray(np.stack([scene] * 3), mask=False)) for _ in range(2)]
    encoder.render(image())  # this starts the child process
    pauses, is_done = [], threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not is_done.is_set():
            time.sleep(0.005)
            pauses.append(time.monotonic() - last)
            last = time.monotonic()

    ticking = threading.Thread(target=tick)
    ticking.start()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda picture: encoder.render(picture, output_format=ImageType.png), pictures))
    is_done.set()
    ticking.join()

    assert len(pauses) > 10
    assert max(pauses) < 0.5


def test_a_child_process_that_is_killed_is_replaced(encoder):
    encoder.render(image(), output_format=ImageType.png)
    (child,) = encoder._pool._processes
    os.kill(child, signal.SIGKILL)

    content, _ = encoder.render(image(), output_format=ImageType.png)

    assert decoded(content).shape == (4, 600, 600)


def test_an_image_that_crashes_each_child_process_is_reported(monkeypatch):
    monkeypatch.setattr("dagmaster.serving.encoding._MAX_SECONDS", 0.001)
    encoder = Encoder(processes=1)
    with pytest.raises(Unavailable) as reported:
        encoder.render(image(), output_format=ImageType.png)
    encoder.close()

    assert reported.value.code == "tiles.not-encoded"


def test_a_child_process_ends_when_the_server_is_killed():
    script = (
        "import time, numpy as np\n"
        "from rio_tiler.models import ImageData\n"
        "from dagmaster.serving.encoding import ENCODER\n"
        "if __name__ == '__main__':\n"
        "    ENCODER.render(ImageData(np.ma.zeros((3, 600, 600), 'uint8')))\n"
        "    print(*ENCODER._pool._processes, flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    process.kill()
    process.communicate()

    deadline = time.monotonic() + 20
    while _is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.1)

    assert not _is_alive(child)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def noisy_folder(storage, tmp_path_factory) -> Path:
    """The storage with noise instead of the scene, because a uniform image is encoded in milliseconds."""
    folder = tmp_path_factory.mktemp("noisy") / "storage"
    shutil.copytree(folder_of(storage), folder)
    (file,) = folder.rglob("scene.tif")
    noise = np.random.default_rng(7).integers(0, 4000, (4, 2048, 2048), dtype=np.uint16)
    write_cog(file, noise, (10, 50, 11, 51), photometric="rgb", alpha="unspecified")
    return folder


def test_the_server_answers_probes_while_it_encodes_large_images(served, noisy_folder, tmp_path):
    delays, is_done = [], threading.Event()
    process = start(
        *("serving", "--port", "0"),
        DATABASE_URL=served,
        STORAGE_FOLDER=str(noisy_folder),
        DAGMASTER_DATA=str(tmp_path),
        LOG_FORMAT="json",
        LOG_LEVEL="info",
    )

    def request(path: str) -> int:
        with urllib.request.urlopen(f"{url}{path}", timeout=60) as response:
            return len(response.read())

    def probe() -> None:
        while not is_done.wait(0.01):
            started = time.monotonic()
            request("/livez")
            delays.append(time.monotonic() - started)

    try:
        url = wait_for_event(process, "maps are served")["url"]
        threading.Thread(target=process.stderr.read, daemon=True).start()
        request("/tiles/scene/preview/600x600.png")  # this starts the child process
        prober = threading.Thread(target=probe)
        prober.start()
        size = request("/tiles/scene/preview/2048x2048.png")
        is_done.set()
        prober.join()
    finally:
        process.kill()
        process.communicate()

    assert size > 5_000_000
    assert len(delays) > 10
    assert max(delays) < 0.5


def limit(**values) -> WorkLimit:
    return WorkLimit(
        **{"running": 2, "per_client": 1, "waiting": 4, "waiting_per_client": 2, "max_seconds": 5, **values}
    )


async def refusal(limit: WorkLimit, client: str) -> str:
    with pytest.raises(DagmasterError) as refused:
        await limit.acquire(client)
    return refused.value.code


async def test_one_client_cannot_use_all_slots():
    work = limit()
    await work.acquire("a")
    second = asyncio.create_task(work.acquire("a"))
    await asyncio.wait_for(work.acquire("b"), 1)
    await asyncio.sleep(0)
    assert not second.done()

    work.release("a")

    await asyncio.wait_for(second, 1)


async def test_a_client_with_too_many_requests_is_refused():
    work = limit()
    await work.acquire("a")
    waiting = [asyncio.create_task(work.acquire("a")) for _ in range(2)]
    await asyncio.sleep(0)

    assert await refusal(work, "a") == "serving.too-many-requests"
    await asyncio.wait_for(work.acquire("b"), 1)
    for task in waiting:
        task.cancel()


async def test_requests_are_refused_if_the_queue_is_full_or_the_wait_too_long():
    work = limit(waiting=1, max_seconds=0.05)
    await work.acquire("a")
    await work.acquire("b")
    waiting = asyncio.create_task(work.acquire("c"))
    await asyncio.sleep(0)

    assert await refusal(work, "d") == "serving.busy"
    with pytest.raises(Unavailable):
        await waiting
    work.release("a")
    await asyncio.wait_for(work.acquire("c"), 1)


async def test_requests_that_are_cancelled_while_they_wait_leave_the_queue():
    work = limit(running=1)
    await work.acquire("a")
    waiting = [asyncio.create_task(work.acquire(client)) for client in "bcd"]
    await asyncio.sleep(0)
    for task in waiting[:2]:
        task.cancel()
    work.release("a")

    await asyncio.wait_for(waiting[2], 1)
    work.release("d")
    assert not work._queue
    assert not work._running


async def test_a_slot_is_released_when_the_response_starts_or_fails():
    work = limit(running=1)
    free: list[int] = []

    async def app(scope, _receive, send):
        free.append(work._running.total())
        if "broken" in scope["path"]:
            raise RuntimeError
        await send({"type": "http.response.start", "status": 200, "headers": []})
        free.append(work._running.total())

    async def send(_message):
        pass

    limited = PixelLimits(app, large=work)
    await limited({"type": "http", "path": "/tiles/dem/preview.png", "client": ("a", 1)}, None, send)
    with pytest.raises(RuntimeError):
        await limited({"type": "http", "path": "/tiles/dem/broken/preview", "client": ("a", 1)}, None, send)

    assert free == [1, 0, 1]
    assert not work._running


def scope_of(caller: Caller | None, address: str) -> dict:
    return {"type": "http", "client": (address, 1), "state": {CALLER: caller} if caller else {}}


def test_callers_with_credentials_are_counted_by_name_and_others_by_address():
    ada, bob = Caller("ada"), Caller("bob")

    assert client_of(scope_of(ada, "10.0.0.1")) == client_of(scope_of(ada, "10.0.0.2"))
    assert client_of(scope_of(ada, "10.0.0.1")) != client_of(scope_of(bob, "10.0.0.1"))
    for caller in (ANONYMOUS, LOCAL_ADMIN, LOCAL_VIEWER, None):
        assert client_of(scope_of(caller, "10.0.0.1")) == "10.0.0.1"
    assert client_of(scope_of(Caller("10.0.0.1"), "10.0.0.2")) != "10.0.0.1"


async def test_one_caller_behind_a_proxy_does_not_use_up_the_slots_of_another():
    work, is_ended = limit(running=2, per_client=1, waiting_per_client=0), asyncio.Event()
    statuses: dict[str, int] = {}

    async def app(scope, _receive, send):
        if scope["state"][CALLER].name == "ada":
            await is_ended.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def request(name: str) -> None:
        async def send(message):
            statuses.setdefault(name, message.get("status"))

        state = {CALLER: Caller(name.partition(" ")[0]), "request_id": "r"}
        scope = {"type": "http", "path": "/tiles/dem/preview.png", "client": ("10.0.0.1", 1), "state": state}
        await PixelLimits(app, large=work)(scope, None, send)

    first = asyncio.create_task(request("ada"))
    await asyncio.sleep(0)
    await asyncio.gather(request("bob"), request("ada again"))
    is_ended.set()
    await first

    assert statuses == {"bob": 200, "ada again": 429, "ada": 200}


@pytest.mark.parametrize(
    ("path", "is_large"),
    [
        ("/tiles/dem/preview.png", True),
        ("/tiles/dem/preview/2048x2048.png", True),
        ("/tiles/dem/statistics", True),
        ("/tiles/dem/bbox/1,2,3,4.png", True),
        ("/tiles/dem/feature", True),
        ("/tiles/dem/tiles/WebMercatorQuad/9/1/2.png", False),
        ("/tiles/dem/WebMercatorQuad/tilejson.json", False),
        ("/tiles/dem/point/1,2", False),
        ("/tiles/dem/info", False),
    ],
)
def test_large_requests_are_those_for_many_pixels(path, is_large):
    limits = PixelLimits(lambda *_: None)

    assert limits._limit_of({"type": "http", "path": path}) is (limits._large if is_large else limits._small)
    assert limits._limit_of({"type": "http", "path": path, "query_string": b"tilesize=1024"}) is limits._large
    assert limits._limit_of({"type": "http", "path": "/livez"}) is None


# Routes that read no pixels. All other routes must hold a slot while they are served.
WITHOUT_PIXELS = {
    *(
        "/",
        "/maps",
        "/maps/openapi.json",
        "/pages/{name}",
        "/openapi.json",
        "/livez",
        "/readyz",
        "/metrics",
        "/conformance",
    ),
    *("/stac", "/stac/", "/stac/{path:path}", "/files/{zone}/{container}/{blob:path}"),
    *("/tileMatrixSets", "/tileMatrixSets/{tileMatrixSetId}", "/searches/register"),
    # Routes whose responses have a limited size.
    *("/colorMaps", "/colorMaps/{colorMapId}", "/colormaps/{name}.png"),
}
# Routes below a dataset or a search that read few pixels or none.
SMALL = {
    *("/tiles/{tileMatrixSetId}/{z}/{x}/{y}.{format}", "/tiles/{tileMatrixSetId}/{z}/{x}/{y}"),
    *("/tiles/{z}/{x}/{y}.{format}", "/tiles/{z}/{x}/{y}", "/tilejson.json"),
    *("/{tileMatrixSetId}/tilejson.json", "/map", "/WebMercatorQuad/map.html", "/info", "/info.geojson"),
    *("/tiles", "/tiles/{tileMatrixSetId}", "/WMTSCapabilities.xml", "/point/{lon},{lat}"),
}
LARGE_VALUES = {
    **{name: values[0] for name, values in VALUES.items()},
    "asset_id": "dem",
    "width": "600",
    "height": "600",
    "f": "json",
}


def all_routes(app) -> list[tuple[str, str]]:
    """Method and path of every route, including those in routers."""
    routes = []
    for route in app.routes:
        inner = getattr(route, "original_router", None)
        prefix = route.include_context.prefix if inner else ""
        for one in inner.routes if inner else [route]:
            routes += [(method, prefix + one.path) for method in sorted(one.methods or ["GET"])]
    return routes


def filled(path: str) -> str:
    for name in [part.split("}")[0] for part in path.split("{")[1:]]:
        path = path.replace(f"{{{name}}}", LARGE_VALUES[name.partition(":")[0]])
    return path


def test_every_route_that_can_read_pixels_is_limited(app):
    limits = PixelLimits(lambda *_: None)
    routes = {path for _, path in all_routes(app)}
    assert routes >= WITHOUT_PIXELS
    for path in routes - WITHOUT_PIXELS:
        prefix = next(
            (prefix for prefix in ("/tiles/{asset_id}", "/searches/{search_id}") if path.startswith(prefix)), ""
        )
        assert prefix, path
        expected = limits._small if path.removeprefix(prefix) in SMALL else limits._large

        assert limits._limit_of({"type": "http", "path": filled(path)}) is expected, path
        for base in ("/maps", "/tiles"):
            assert limits._limit_of({"type": "http", "path": base + filled(path), "root_path": base}) is expected


def test_every_route_of_tiles_checks_coordinates_and_bodies():
    """TiTiler accepts any coordinates and any body."""
    checked = []
    for route in tiles.router(grids.grids_named([])).routes:
        expected = [
            check
            for text, check in (("{minx}", deps.require_box), ("{lon}", deps.require_degrees))
            if text in route.path
        ]
        expected += [deps.require_areas] if "POST" in route.methods else []
        limits = {deps.require_box, deps.require_degrees, deps.require_areas}
        calls = [dependency.call for dependency in route.dependant.dependencies if dependency.call in limits]
        assert calls == expected, (route.methods, route.path)
        assert [depends.dependency for depends in route.dependencies] == expected, (route.methods, route.path)
        checked += expected

    counts = {check.__name__: checked.count(check) for check in checked}
    assert counts == {"require_box": 4, "require_degrees": 2, "require_areas": 4}


def test_every_route_holds_a_slot_and_encodes_large_images_in_a_child_process(client, monkeypatch):
    """Reads and encodings are counted in the libraries that perform them."""
    import rio_tiler.reader
    import titiler.core.utils

    from dagmaster.serving import tiles

    running, reads, encoded_in_process, encoded_in_child = [0], [], [], []
    acquire, release, in_child = WorkLimit.acquire, WorkLimit.release, Encoder._render_in_child
    read = rio_tiler.reader.read

    async def count_acquire(self, client):
        await acquire(self, client)
        running[0] += 1

    def count_release(self, client):
        running[0] -= 1
        release(self, client)

    def count_read(*arguments, **options):
        reads.append(running[0])
        return read(*arguments, **options)

    def count_child(self, *arguments):
        encoded_in_child.append(arguments)
        return in_child(self, *arguments)

    def counted(render):
        def count(data, *arguments, **options):
            encoded_in_process.append(data.shape)
            return render(data, *arguments, **options)

        return count

    monkeypatch.setattr(WorkLimit, "acquire", count_acquire)
    monkeypatch.setattr(WorkLimit, "release", count_release)
    monkeypatch.setattr(rio_tiler.reader, "read", count_read)
    monkeypatch.setattr(Encoder, "_render_in_child", count_child)
    monkeypatch.setattr(titiler.core.utils, "render", counted(titiler.core.utils.render))
    monkeypatch.setattr(tiles, "render", counted(tiles.render))
    area = {"type": "Feature", "properties": {}, "geometry": POLYGON}
    reading, encoding_routes = set(), set()
    for method, path in all_routes(client.app):
        if not path.startswith(("/tiles/", "/searches/{")):
            continue
        is_tile = "{z}" in path
        query = "?tilesize=1024" if is_tile else "?max_size=600" if re.search("preview|bbox|feature", path) else ""
        for kept in (reads, encoded_in_process, encoded_in_child):
            kept.clear()
        response = client.request(
            method, filled(path) + query, json=area if method == "POST" else None, follow_redirects=False
        )

        assert response.status_code in (200, 307), f"{method} {path}: {response.text[:300]}"
        assert all(reads), f"{method} {path} reads without a slot"
        assert [shape for shape in encoded_in_process if shape[-1] * shape[-2] > 256 * 256] == [], f"{method} {path}"
        assert running == [0]
        if reads:
            reading.add(path)
        if response.headers.get("content-type", "").startswith("image/"):
            assert encoded_in_child, f"{method} {path}"
            encoding_routes.add(path)

    assert len(reading) >= 12
    assert len(encoding_routes) >= 10


@pytest.mark.parametrize("path", ["bbox/" + "1," * 300, "bbox/1,2,3,4/" + "1x." * 900, "point/" + "," * 5000])
def test_a_path_with_many_separators_is_refused_before_route_matching(client, path):
    started = time.monotonic()
    response = client.get(f"/tiles/dem/{path}")

    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("path", [",,," + "x." * 240, ",,,/" + "x" * 240 + "." * 240, "," * 3 + "/" * 480])
def test_route_matching_takes_little_time(client, path):
    started = time.monotonic()

    assert client.get(f"/tiles/dem/bbox/{path}").status_code in (404, 422)
    assert time.monotonic() - started < 1


def test_a_refused_request_has_a_retry_after_header(client, monkeypatch):
    async def refuse(self, _client):
        raise Unavailable("busy", code="serving.busy")

    monkeypatch.setattr(WorkLimit, "acquire", refuse)
    response = client.get("/tiles/plain/preview.png")

    assert response.status_code == 503
    assert response.json()["code"] == "serving.busy"
    assert int(response.headers["retry-after"]) > 0
