"""A complete platform from the images that `make images` has built, started with buildah in chroots.

A chroot is not a container: the network and the process table are those of this machine. The tests prove that each
image contains everything that its role needs, runs as an unprivileged user, and writes only to its volumes.
"""

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin

from dagmaster import __version__
from dagmaster.local.embedded import Cluster
from tests.cli.processes import CLEARED
from tests.conftest import fresh_database
from tests.deploy.manifests import PORTS, ROLES, image_environment

USER = 10001
ENVIRONMENT = {**os.environ, "BUILDAH_ISOLATION": "chroot"}


def image(role: str) -> str:
    return f"localhost/dagmaster-{role}:{__version__}"


def buildah(*arguments: str) -> str:
    return subprocess.run(
        ["buildah", *arguments], env=ENVIRONMENT, check=True, capture_output=True, text=True, timeout=120
    ).stdout.strip()


def are_built() -> bool:
    if os.geteuid() != 0 or not shutil.which("buildah"):
        return False
    names = subprocess.run(
        ["buildah", "images", "--format", "{{.Name}}:{{.Tag}}"], capture_output=True, text=True, check=False, timeout=60
    )
    return {image(role) for role in ROLES} <= set(names.stdout.split())


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.requirement("P2", "M5"),
    pytest.mark.skipif("not are_built()", reason="needs root, buildah and the images of `make images`"),
]


class Chroot:
    """One working container of an image."""

    def __init__(self, role: str, folders: list[Path], **variables: str) -> None:
        self.role = role
        self.name = buildah("from", "--pull-never", image(role))
        self.root = Path(buildah("mount", self.name))
        self._options = [
            *("--user", f"{USER}:{USER}"),
            *(option for folder in folders for option in ("--volume", f"{folder}:{self._inside(folder)}")),
            *(option for name, value in variables.items() for option in ("--env", f"{name}={value}")),
        ]
        self._processes: list[subprocess.Popen[str]] = []
        self._before = self._files()

    @staticmethod
    def _inside(folder: Path) -> str:
        return "/data/storage" if folder.name == "storage" else str(folder)

    def command(self, *arguments: str) -> list[str]:
        return ["buildah", "run", *self._options, self.name, "--", *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
        )

    def dagmaster(self, *arguments: str) -> Any:
        finished = self.run("/opt/dagmaster/bin/dagmaster", *arguments, "--json")
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout)

    def start(self, log: Path) -> None:
        """Start the role that RUN_MODE of the image selects."""
        process = subprocess.Popen(
            self.command("/opt/dagmaster/bin/dagmaster"),
            env=ENVIRONMENT,
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)

    def is_healthy(self) -> bool:
        healthcheck = "/opt/dagmaster/share/healthcheck.py"
        return self.run("/opt/dagmaster/bin/python", "-S", healthcheck).returncode == 0

    def written(self) -> set[str]:
        """Files of the image that were changed or added since the container was created."""
        return {path for path, state in self._files().items() if self._before.get(path) != state}

    def _files(self) -> dict[str, tuple[int, int]]:
        # buildah itself writes these for each command.
        skipped = ("etc/hosts", "etc/resolv.conf", "etc/hostname", "run/.containerenv", "dev", "proc", "sys")
        files = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = Path(folder, name)
                inner = path.relative_to(self.root).as_posix()
                if not inner.startswith((*skipped, "data/storage/", "tmp/")) and not path.is_symlink():
                    facts = path.stat()
                    files[inner] = (facts.st_mtime_ns, facts.st_size)
        return files

    def close(self) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        buildah("rm", self.name)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
    return port


class Platform:
    """Every role in a chroot of its image, on one database and one folder of storage."""

    def __init__(self, dsn: str, folder: Path, sockets: Path) -> None:
        self.storage = folder / "storage"
        self.storage.mkdir()
        os.chown(self.storage, USER, USER)
        self._logs = folder
        self._shared = [self.storage, sockets]
        self._sockets = sockets
        self.ports = {role: free_port() for role in ("orchestrator", "serving", "gateway", "worker", "second worker")}
        self.url = f"http://127.0.0.1:{self.ports['orchestrator']}"
        self.chroots: dict[str, Chroot] = {}
        self._base = {"DATABASE_URL": dsn}

    def start(self) -> None:
        local = {"API_HOST": "127.0.0.1", "SERVING_HOST": "127.0.0.1", "GATEWAY_HOST": "127.0.0.1"}
        serving = f"http://127.0.0.1:{self.ports['serving']}"
        orchestrator = self._add(
            *("orchestrator", "orchestrator"), SERVING_URLS=serving, PUBLIC_URL=self.url, **local, **self._base
        )
        orchestrator.dagmaster("db", "deploy")
        orchestrator.dagmaster("db", "migrate")
        self.key = orchestrator.dagmaster("keys", "create", "admin", "--admin")["key"]
        gateway_url = orchestrator.dagmaster("db", "gateway-role")["gateway_database_url"]
        queues = {"worker": "functionapp-tasks,dag-worker-tasks", "second worker": "container-tasks"}
        for name, queue in queues.items():
            self._add(name, "worker", WORKER_QUEUE=queue, WORKER_MEMORY_MB="2048", **self._base)
        self._add("serving", "serving", PUBLIC_URL=self.url, **local, **self._base)
        self._add("gateway", "gateway", ORCHESTRATOR_URLS=self.url, GATEWAY_DATABASE_URL=gateway_url, **local)
        for name, chroot in self.chroots.items():
            chroot.start(self.log_of(name))
        for name in self.chroots:
            self._await(f"http://127.0.0.1:{self.ports[name]}/readyz", name)

    def log_of(self, name: str) -> Path:
        return self._logs / f"{name.replace(' ', '-')}.log"

    def _add(self, name: str, role: str, **variables: str) -> Chroot:
        folders = [self._sockets] if role == "gateway" else self._shared
        variables |= {PORTS[role]: str(self.ports[name])}
        self.chroots[name] = Chroot(role, folders, **variables)
        return self.chroots[name]

    def _await(self, url: str, name: str, patience_seconds: float = 120) -> None:
        deadline = time.monotonic() + patience_seconds
        while time.monotonic() < deadline:
            with suppress(httpx2.TransportError):
                if httpx2.get(url, timeout=5).status_code == 200:
                    return
            time.sleep(0.2)
        pytest.fail(f"{name} is not ready: {self.log_of(name).read_text()[-3000:]}")

    def close(self) -> None:
        for chroot in self.chroots.values():
            chroot.close()


@contextmanager
def open_to_all(folder: Path) -> Iterator[None]:
    """Allow other users to use the socket of the database: the roles run as another user than the server."""
    modes = {path: path.stat().st_mode & 0o7777 for path in (folder, *folder.glob(".s.PGSQL.*[0-9]"))}
    try:
        for path in modes:
            path.chmod(0o777)
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@pytest.fixture(scope="module")
def platform(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with fresh_database(cluster, "template0") as dsn, open_to_all(cluster.socket_folder):
        platform = Platform(dsn, tmp_path_factory.mktemp("platform"), cluster.socket_folder)
        try:
            platform.start()
            yield platform
        finally:
            platform.close()


@pytest.fixture
def raster(tmp_path: Path) -> Path:
    path = tmp_path / "dem.tif"
    profile: dict[str, Any] = {"driver": "GTiff", "width": 512, "height": 512, "count": 1, "dtype": "float32"}
    with rasterio.open(
        path, "w", crs="EPSG:2056", transform=from_origin(2600000, 1200000, 10, 10), **profile
    ) as dataset:
        dataset.write(np.random.default_rng(1).random((1, 512, 512), "float32") * 1000)
    return path


def tile_at(longitude: float, latitude: float, zoom: int) -> tuple[int, int]:
    """The tile of WebMercatorQuad that contains a point."""
    count = 2**zoom
    x = (longitude + 180) / 360 * count
    y = (1 - math.asinh(math.tan(math.radians(latitude))) / math.pi) / 2 * count
    return int(x), int(y)


def test_a_raster_becomes_a_map(platform, raster, tmp_path):
    inherited = {name: value for name, value in os.environ.items() if name not in CLEARED}
    command = [sys.executable, "-m", "dagmaster", "process", str(raster), "--json", "--server", platform.url]
    finished = subprocess.run(
        command,
        env={
            **inherited,
            "DAGMASTER_DATA": str(tmp_path / "client"),
            "DAGMASTER_KEY": platform.key,
            "PUBLIC_URL": platform.url,
        },
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    tilejson_url = json.loads(finished.stdout)["tilejson_url"]

    headers = {"Authorization": f"Bearer {platform.key}"}
    tilejson = httpx2.get(tilejson_url, headers=headers, timeout=60).json()
    west, south, east, north = tilejson["bounds"]
    assert 6 < west < east < 9
    assert 46 < south < north < 48
    (x, y), zoom = tile_at((west + east) / 2, (south + north) / 2, tilejson["minzoom"]), tilejson["minzoom"]
    url = tilejson["tiles"][0].replace("{z}", str(zoom)).replace("{x}", str(x)).replace("{y}", str(y))
    tile = httpx2.get(url, headers=headers, timeout=60)
    assert tile.status_code == 200
    assert tile.headers["content-type"].startswith("image/")
    workers = httpx2.get(f"{platform.url}/api/v1/workers", headers=headers, timeout=30).json()
    assert len(workers["items"]) == 2


@pytest.mark.parametrize("name", ["orchestrator", "worker", "second worker", "serving", "gateway"])
def test_a_role_is_healthy_as_an_unprivileged_user_and_writes_nothing_into_its_image(platform, name):
    chroot = platform.chroots[name]

    assert chroot.is_healthy(), platform.log_of(name).read_text()[-2000:]
    assert chroot.run("/opt/dagmaster/bin/python", "-c", "import os; print(os.getuid())").stdout.strip() == str(USER)
    assert chroot.written() == set()


@pytest.mark.parametrize("role", ["orchestrator", "gateway"])
def test_an_image_without_pixels_has_no_gdal(platform, role):
    code = "from importlib.util import find_spec as f; print([n for n in ('rasterio', 'numpy', 'osgeo') if f(n)])"

    assert platform.chroots[role].run("/opt/dagmaster/bin/python", "-c", code).stdout.strip() == "[]"


@pytest.mark.parametrize("role", ROLES)
def test_an_image_has_its_sbom_and_no_pip(platform, role):
    root = platform.chroots[role].root / "opt" / "dagmaster"
    document = json.loads((root / "share" / f"{role}.cdx.json").read_text())
    installed = {path.name.partition("-")[0].lower() for path in root.glob("lib/python3*/site-packages/*.dist-info")}
    listed = {each["purl"].partition("@")[0].removeprefix("pkg:pypi/") for each in document["components"]}

    assert "pip" not in installed
    assert {name.replace("_", "-").replace(".", "-") for name in installed} == {
        name for name in listed if not name.startswith("pkg:")
    }


@pytest.mark.parametrize("role", ROLES)
def test_an_image_has_the_configuration_of_its_dockerfile(role):
    config = json.loads(buildah("inspect", "--type", "image", image(role)))["Docker"]["config"]

    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"] == ["/opt/dagmaster/bin/dagmaster"]
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert {f"{name}={value}" for name, value in image_environment(role).items()} <= {*config["Env"]}
