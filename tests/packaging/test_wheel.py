"""The wheel in clean environments: the base installation works, and errors name the extra that is missing."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin

from dagmaster.local.embedded import Cluster
from tests.cli.processes import CLEARED
from tests.conftest import fresh_database
from tests.packaging.environments import build_wheel, environment
from tests.packaging.test_dependencies import ROOTS, files_of, imports


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
            timeout=100,
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


@pytest.fixture(scope="module")
def orchestrator(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("orchestrator")
    return Installation(environment(folder / "venv", wheel, "orchestrator"), folder / "data")


@pytest.fixture
def raster(tmp_path: Path) -> Path:
    path = tmp_path / "dem.tif"
    profile: dict[str, Any] = {"driver": "GTiff", "width": 64, "height": 64, "count": 1, "dtype": "float32"}
    with rasterio.open(
        path, "w", crs="EPSG:2056", transform=from_origin(2600000, 1200000, 10, 10), **profile
    ) as dataset:
        dataset.write(np.random.default_rng(1).random((1, 64, 64), "float32"))
    return path


# Packages that need another extra, and are tested separately.
SPECIAL = (
    *("handlers.", "raster", "stac", "storage.objects", "storage.azure", "storage.s3", "serving"),
    "worker.executors.dask",
)
OF_SERVERS = (
    *("alembic", "fastapi", "jwt", "psycopg", "psycopg_pool", "pypgstac", "sqlalchemy", "starlette", "uvicorn"),
    *("rasterio", "numpy", "titiler.core", "asyncpg", "obstore"),
)


def import_all(installation: Installation, *without: str, only: tuple[str, ...] = ("",)) -> int:
    """Import the modules of the installed package by the beginnings of their names; returns how many."""
    skipped, chosen = (tuple(f"dagmaster.{name}" for name in names) for names in (without or ("-",), only))
    code = (
        "import pkgutil, importlib, dagmaster\n"
        "names = [m.name for m in pkgutil.walk_packages(dagmaster.__path__, 'dagmaster.', onerror=lambda name: None)]\n"
        f"chosen = [n for n in names if n.startswith({chosen!r}) and not n.startswith({skipped!r})]\n"
        "print(len([importlib.import_module(name) for name in chosen if not name.endswith('__main__')]))\n"
    )
    finished = installation.run("-W", "ignore", "-c", code)
    assert finished.returncode == 0, finished.stderr
    return int(finished.stdout)


def test_the_base_installation_has_no_packages_of_servers(base):
    """Otherwise the tests below prove nothing."""
    code = f"from importlib.util import find_spec as f; print([n for n in {OF_SERVERS!r} if f(n.partition('.')[0])])"

    assert base.run("-c", code).stdout.strip() == "[]"


def test_every_module_of_the_client_and_of_the_command_line_can_be_imported(base):
    only = ("client", "cli", "access", "jobs", "assets", "callbacks", "library", "workflows", "observe", "settings")

    assert import_all(base, "cli.direct_schema", "observe.metrics", "observe.probes", only=only) > 100


def test_the_base_installation_has_the_typed_client(base):
    finished = base.run("-c", "from dagmaster.client import Client; import dagmaster; print(dagmaster.__file__)")

    assert finished.returncode == 0, finished.stderr
    assert (Path(finished.stdout.strip()).parent / "py.typed").is_file()


def test_all_modules_of_an_orchestrator_can_be_imported_without_gdal(orchestrator):
    assert "ModuleNotFoundError" in orchestrator.run("-c", "import rasterio").stderr
    assert "ModuleNotFoundError" in orchestrator.run("-c", "import numpy").stderr

    assert import_all(orchestrator, *SPECIAL) > 200


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("up",), "all"),
        (("demo",), "all"),
        (("process", "{raster}"), "all"),
        (("orchestrator",), "orchestrator"),
        (("worker",), "worker"),
        (("serving",), "serving"),
        (("gateway",), "gateway"),
        (("db", "status"), "orchestrator"),
        (("keys", "create", "me", "--admin"), "orchestrator"),
        (("verify-history", "--all"), "orchestrator"),
        (("verify-storage",), "orchestrator"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_the_error_of_a_command_that_needs_an_extra_names_it(base, raster, command, extra):
    arguments = [argument.format(raster=raster) for argument in command]
    database = "postgresql://nobody@127.0.0.1:1/none"

    finished = base.dagmaster(
        *arguments,
        "--json",
        DATABASE_URL=database,
        GATEWAY_DATABASE_URL=database,
        ORCHESTRATOR_URLS="http://127.0.0.1:1",
    )
    error = json.loads(finished.stderr.splitlines()[-1])["error"]

    assert finished.returncode == 2, error
    assert error["code"] in {"extra.missing", "serving.not-installed"}
    assert error["hint"] == f"pip install 'dagmaster[{extra}]'"


def test_the_error_of_a_role_without_its_extra_names_it(base):
    finished = base.dagmaster(RUN_MODE="worker", DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")

    assert finished.returncode == 2
    assert "hint: pip install 'dagmaster[worker]'" in finished.stderr


def test_the_base_installation_can_validate_workflows_and_run_the_doctor(base, tmp_path):
    workflow = tmp_path / "one.yaml"
    workflow.write_text("workflow_id: one\nname: One\nversion: 1\nnodes:\n  begin: {type: start, next: nothing}\n")

    validated = base.dagmaster("workflows", "validate", str(workflow))
    checked = json.loads(base.dagmaster("doctor", "--json").stdout)

    assert validated.returncode == 2
    assert "`next` names 'nothing', which does not exist" in validated.stdout
    (skipped,) = (each for each in checked["findings"] if each["check"] == "database")
    assert "pip install 'dagmaster[orchestrator]'" in skipped["observation"]


def test_an_orchestrator_without_gdal_runs_jobs_that_the_base_installation_submits(
    base, orchestrator, cluster: Cluster
):
    """`up` in the clean environment, with a job that needs no handler of the extra `worker`."""
    with fresh_database(cluster, "template0") as dsn:
        python = str(orchestrator._python)
        variables = {**orchestrator._variables, "DATABASE_URL": dsn, "API_PORT": "0", "HEALTH_PORT": "0"}
        variables["GATEWAY_ENABLED"] = "false"
        command = [python, "-m", "dagmaster", "up", "--json"]
        platform = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert platform.stdout is not None
            facts = json.loads(platform.stdout.readline())
            finished = base.dagmaster("submit", "hello_world", "--wait", "--server", facts["api_url"])
            jobs = json.loads(base.dagmaster("jobs", "ls", "--json", "--server", facts["api_url"]).stdout)
        finally:
            platform.terminate()
            platform.communicate(timeout=40)

    assert facts["maps_url"] is None
    assert json.loads(finished.stdout) == {"message": "Hello, world!"}
    assert [job["status"] for job in jobs["jobs"]] == ["completed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        ("worker", ("worker", "handlers", "raster", "stac", "storage", "roles.worker")),
        ("serving", ("serving", "roles.serving")),
        ("gateway", ("gateway", "roles.gateway", "web")),
        ("all", ("",)),
    ],
)
def test_every_module_of_an_extra_can_be_imported(wheel, tmp_path, extra, packages):
    installation = Installation(environment(tmp_path / "venv", wheel, *with_optional_extras(extra)), tmp_path)

    assert import_all(installation, only=packages) > 5


def with_optional_extras(extra: str) -> tuple[str, ...]:
    """An extra with the optional ones that its packages have modules for."""
    return (extra, "azure", "s3", "dask") if extra in ("orchestrator", "worker") else (extra,)


@pytest.mark.slow
@pytest.mark.parametrize("extra", ROOTS)
def test_modules_that_functions_of_an_extra_import_are_installed(wheel, tmp_path, extra):
    """A module of a library may need a package that the library itself does not require (pystac.validation)."""
    modules = {module for file in files_of(*ROOTS[extra]) for module in imports(file) if is_library_module(module)}
    code = f"import importlib\nfor name in {sorted(modules)!r}: importlib.import_module(name)"
    installed = environment(tmp_path / "venv", wheel, *with_optional_extras(extra))
    finished = Installation(installed, tmp_path).run("-W", "ignore", "-c", code)

    assert len(modules) > 5
    assert finished.returncode == 0, finished.stderr


def is_library_module(module: str) -> bool:
    """Whether this is a module of a library, and not of this package, or a name in a module."""
    return module.partition(".")[0] not in {*sys.stdlib_module_names, "dagmaster"} and bool(find_spec(module))


@pytest.mark.slow
@pytest.mark.parametrize("role", ["orchestrator", "worker", "serving", "gateway"])
def test_a_role_starts_with_only_its_extra(wheel, tmp_path, role, database):
    """As in a container: RUN_MODE selects the role, and the health probe responds."""
    installation = Installation(environment(tmp_path / "venv", wheel, role), tmp_path)

    assert_starts(installation, role, database)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "libraries", "variables"),
    [
        ("azure", ("azure.servicebus", "obstore"), {"STORAGE_BACKEND": "azure", "AZURE_STORAGE_ACCOUNT_NAME": "acme"}),
        ("s3", ("botocore", "obstore"), {"STORAGE_BACKEND": "s3", "S3_ENDPOINT": "http://127.0.0.1:1"}),
        ("otel", ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"), {}),
        ("dask", ("distributed",), {}),
    ],
)
def test_an_optional_extra_has_its_libraries_and_a_worker_starts_with_it(  # noqa: PLR0917
    wheel, tmp_path, database, extra, libraries, variables
):
    alone = Installation(environment(tmp_path / "alone", wheel, extra), tmp_path)
    code = f"import importlib, dagmaster.cli.main\nfor name in {libraries!r}: importlib.import_module(name)"
    imported = alone.run("-W", "ignore", "-c", code)
    without = alone.dagmaster("worker", DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    both = Installation(environment(tmp_path / "both", wheel, "worker", extra), tmp_path)

    assert imported.returncode == 0, imported.stderr
    assert "hint: pip install 'dagmaster[worker]'" in without.stderr
    assert_starts(both, "worker", database, **variables)


def assert_starts(installation: Installation, role: str, database: str, **more: str) -> None:
    port = free_port()
    variables = {
        **installation._variables,
        "RUN_MODE": role,
        "DATABASE_URL": database,
        "GATEWAY_DATABASE_URL": database,
        "ORCHESTRATOR_URLS": "http://127.0.0.1:1",
        **{f"{name}_PORT": str(port) for name in ("API", "HEALTH", "SERVING", "GATEWAY")},
        **more,
    }
    command = [str(installation._python), "-m", "dagmaster"]
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        status = status_of(f"http://127.0.0.1:{port}/livez", process)
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=40)

    assert status == 200, output
    assert "Traceback" not in output


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
    return port


def status_of(url: str, process: subprocess.Popen[str], patience_seconds: float = 80) -> int | None:
    """The status of the first response; None if the process ends or does not respond."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(httpx2.TransportError):
            return httpx2.get(url, timeout=5).status_code
        time.sleep(0.1)
    return None
