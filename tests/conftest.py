"""Fixtures for all tests: a private PostgreSQL server for the run, and a new database for each test that uses one.

Each pytest-xdist worker has its own cluster, whose server ends with the worker in every case.
"""

import contextlib
import gc
import itertools
import logging
import os
import shutil
import signal
import ssl
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import httpcore2
import hypothesis
import psycopg
import pytest
import structlog

from dagmaster.database.catalog.pgstac import deploy_catalog
from dagmaster.database.schema.deploy import deploy
from dagmaster.local.embedded import Cluster
from dagmaster.observe import log
from tests.budgets import Stopwatch

pytest_plugins = ["tests.object_stores.fixtures"]

# A separate package, whose tests run where it is installed.
collect_ignore = ["example_package"]
MEMORY = Path("/dev/shm")
TEMPLATE = "dagmaster_template"
CATALOG_TEMPLATE = "dagmaster_catalog_template"
_numbers = itertools.count(1)
# How long an example takes depends on the other tests that run meanwhile.
hypothesis.settings.register_profile("dagmaster", deadline=None)
hypothesis.settings.load_profile("dagmaster")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--slow"):
        config.pluginmanager.register(Stopwatch())
    _allow_interrupts()
    _load_certificates_once()


def _load_certificates_once() -> None:
    """Cache the certificates of the system: loading them for each HTTP client takes longer than most requests of tests.
    Clients with other certificates have their own contexts."""
    load = httpcore2.default_ssl_context

    @cache
    def loaded(trust_env: bool, _file: str | None, _folder: str | None) -> ssl.SSLContext:
        return load(_trust_env=trust_env)

    def default_ssl_context(*, _trust_env: bool = True) -> ssl.SSLContext:
        return loaded(_trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    httpcore2.default_ssl_context = default_ssl_context


def _allow_interrupts() -> None:
    """Restore SIGINT: a shell starts background jobs with SIGINT ignored, which child processes inherit, so that Ctrl-C
    could not be tested."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")
    parser.addoption(
        "--requirement",
        action="append",
        default=[],
        metavar="TAG",
        help="run only the tests of this requirement; repeatable",
    )
    parser.addoption("--seeds", type=int, default=500, help="number of seeds that the simulation runs")
    parser.addoption("--seed", type=int, help="run the simulation with this seed only, and print its trace")


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, because they exist as long as the process."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if wanted := set(config.getoption("--requirement")):
        others = [item for item in items if not wanted & _requirements_of(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if wanted & _requirements_of(item)]
    if config.getoption("--slow"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))


def _requirements_of(item: pytest.Item) -> set[str]:
    return {tag for marker in item.iter_markers("requirement") for tag in marker.args}


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Reset logging after each test: a test may have configured logging to a stream that is closed afterwards.

    Tracebacks are short: with the values of all variables, as by default, one of them can take a minute.
    """
    *processors, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, renderer])
    yield
    structlog.reset_defaults()
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, log._LibraryHandler)]:
        root.removeHandler(handler)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server for this run, without durability, which no test needs."""
    _remove_leftovers_of_killed_runs()
    data_folder = None if os.geteuid() == 0 else tmp_path_factory.mktemp("cluster")
    cluster = Cluster.at(data_folder, name=f"test-{os.getpid()}", fast=True)
    if _has_memory_for_files():
        cluster = replace(cluster, folder=MEMORY / f"dagmaster-test-{os.getpid()}")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


@pytest.fixture(scope="session")
def template_database(cluster: Cluster) -> str:
    """A deployed database that is only cloned, because a template must have no connections."""
    with administrator(cluster) as connection:
        connection.execute(f"CREATE DATABASE {TEMPLATE}")
    deploy(cluster.dsn_of(TEMPLATE))
    return TEMPLATE


@pytest.fixture
def database(cluster: Cluster, template_database: str) -> Iterator[str]:
    """The address of a newly deployed database, which is dropped after the test."""
    with fresh_database(cluster, template_database) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def shared_database(cluster: Cluster, template_database: str) -> Iterator[str]:
    """A database shared by the tests of a module that leave nothing behind."""
    with fresh_database(cluster, template_database) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def catalog_template(cluster: Cluster, template_database: str) -> str:
    """A deployed database with the STAC catalogue, created only if a test needs it, because that takes seconds."""
    with administrator(cluster) as connection:
        connection.execute(f"CREATE DATABASE {CATALOG_TEMPLATE} TEMPLATE {template_database} STRATEGY file_copy")
    deploy_catalog(cluster.dsn_of(CATALOG_TEMPLATE))
    return CATALOG_TEMPLATE


@pytest.fixture
def catalog_database(cluster: Cluster, catalog_template: str) -> Iterator[str]:
    """The address of a newly deployed database with the STAC catalogue, which is dropped after the test."""
    with fresh_database(cluster, catalog_template) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def shared_catalog(cluster: Cluster, catalog_template: str) -> Iterator[str]:
    """A database with the STAC catalogue, shared by all tests of a module."""
    with fresh_database(cluster, catalog_template) as dsn:
        yield dsn


@pytest.fixture
def empty_database(cluster: Cluster) -> Iterator[str]:
    """The address of an empty database."""
    with fresh_database(cluster, "template0") as dsn:
        yield dsn


@contextlib.contextmanager
def fresh_database(cluster: Cluster, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    with administrator(cluster) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    try:
        yield cluster.dsn_of(name)
    finally:
        with administrator(cluster) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _has_memory_for_files() -> bool:
    """Whether there is enough memory for the files of a cluster. In memory, a database is cloned in half the time."""
    return MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4e9 and _available_bytes() > 4e9


def _available_bytes() -> int:
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(facts["MemAvailable"].split()[0]) * 1024


def administrator(cluster: Cluster) -> psycopg.Connection:
    return psycopg.connect(cluster.dsn_of("postgres"), autocommit=True)


def _remove_leftovers_of_killed_runs() -> None:
    """Remove the files of runs that were ended by SIGKILL; their servers have ended with them."""
    places = (
        ("/var/lib/dagmaster", "test-*"),
        ("/run", "dagmaster-test-*"),
        ("/tmp", "dagmaster-*test-*"),
        (MEMORY, "dagmaster-test-*"),
    )
    for folder in (leftover for place, pattern in places for leftover in Path(place).glob(pattern)):
        pid = folder.name.rpartition("-")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)
