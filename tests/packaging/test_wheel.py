"""The wheel in clean environments: the base installation works, and what needs an extra says which one."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin

from dagmaster.local.embedded import Cluster
from tests.cli.processes import CLEARED
from tests.conftest import fresh_database
from tests.packaging.environments import build_wheel, environment


class Installation:
    def __init__(self, python: Path, data: Path) -> None:
        self._python = python
        inherited = {name: value for name, value in os.environ.items() if name not in (*CLEARED, "PYTHONPATH")}
        self._variables = {**inherited, "DAGMASTER_DATA": str(data)}

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._python, *arguments],
            cwd=self._python.parent,
            env={**self._variables, **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def dagmaster(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "dagmaster", *arguments, **variables)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("base")
    return Installation(environment(folder / "venv", wheel), folder / "data")


@pytest.fixture
def raster(tmp_path: Path) -> Path:
    path = tmp_path / "dem.tif"
    profile: dict[str, Any] = {"driver": "GTiff", "width": 64, "height": 64, "count": 1, "dtype": "float32"}
    with rasterio.open(
        path, "w", crs="EPSG:2056", transform=from_origin(2600000, 1200000, 10, 10), **profile
    ) as dataset:
        dataset.write(np.random.default_rng(1).random((1, 64, 64), "float32"))
    return path


def test_the_base_installation_has_no_geospatial_packages(base):
    """Otherwise the tests below prove nothing."""
    for module in ("rasterio", "numpy", "titiler.core", "asyncpg", "obstore"):
        assert "ModuleNotFoundError" in base.run("-c", f"import {module}").stderr


def test_every_module_of_the_base_installation_can_be_imported(base):
    code = (
        "import pkgutil, importlib, dagmaster\n"
        "special = tuple(f'dagmaster.{name}' for name in ('handlers.', 'raster', 'stac', 'storage', 'serving'))\n"
        "names = [m.name for m in pkgutil.walk_packages(dagmaster.__path__, 'dagmaster.', onerror=lambda name: None)]\n"
        "ours = [n for n in names if not n.startswith(special) and not n.endswith('__main__')]\n"
        "print(len([importlib.import_module(name) for name in ours]))\n"
    )
    finished = base.run("-W", "ignore", "-c", code)

    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout) > 100


def test_the_base_installation_has_the_typed_client(base):
    finished = base.run("-c", "from dagmaster.client import Client; import dagmaster; print(dagmaster.__file__)")

    assert finished.returncode == 0, finished.stderr
    assert (Path(finished.stdout.strip()).parent / "py.typed").is_file()


@pytest.mark.parametrize("command", [("process", "{raster}"), ("demo",)])
def test_a_command_that_needs_an_extra_names_it(base, raster, command):
    arguments = [argument.format(raster=raster) for argument in command]

    finished = base.dagmaster(*arguments)
    as_json = json.loads(base.dagmaster(*arguments, "--json").stderr.splitlines()[-1])

    assert finished.returncode == 2
    assert "not installed" in finished.stderr
    assert "hint: pip install 'dagmaster[" in finished.stderr
    assert "bug" not in finished.stderr
    assert as_json["error"]["code"] in {"extra.missing", "serving.not-installed"}


def test_the_map_server_names_its_extra(base):
    finished = base.dagmaster("serving", DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")

    assert finished.returncode == 2
    assert "hint: pip install 'dagmaster[serving]'" in finished.stderr


def test_the_base_installation_runs_jobs(base, cluster: Cluster):
    """`up` in the clean environment, with a job that needs no extra."""
    with fresh_database(cluster, "template0") as dsn:
        python = str(base._python)
        variables = {**base._variables, "DATABASE_URL": dsn, "API_PORT": "0", "HEALTH_PORT": "0"}
        command = [python, "-m", "dagmaster", "up", "--json"]
        platform = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert platform.stdout is not None
            facts = json.loads(platform.stdout.readline())
            finished = base.dagmaster("submit", "hello_world", "--wait", DATABASE_URL=dsn)
        finally:
            platform.terminate()
            platform.communicate(timeout=40)

    assert facts["maps_url"] is None
    assert json.loads(finished.stdout) == {"message": "Hello, world!"}


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["worker", "serving", "all"])
def test_every_module_of_an_extra_can_be_imported(wheel, tmp_path, extra):
    packages = {"worker": ["handlers", "raster", "stac", "storage"], "serving": ["serving"]}
    chosen = [each for name, names in packages.items() for each in names if extra in (name, "all")]
    code = (
        "import pkgutil, importlib, dagmaster\n"
        f"for package in {chosen!r}:\n"
        "    module = importlib.import_module(f'dagmaster.{package}')\n"
        "    for each in pkgutil.walk_packages(module.__path__, f'dagmaster.{package}.'):\n"
        "        importlib.import_module(each.name)\n"
    )
    finished = Installation(environment(tmp_path / "venv", wheel, extra), tmp_path).run("-W", "ignore", "-c", code)

    assert finished.returncode == 0, finished.stderr
