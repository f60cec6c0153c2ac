"""Commands for each test, with and without an external database."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from dagmaster.local.embedded import Cluster
from tests.commands.kit import Commands
from tests.conftest import fresh_database
from tests.operations.kit import opened


@pytest.fixture
async def commands(catalog_database: str, tmp_path: Path) -> AsyncIterator[Commands]:
    async with opened(catalog_database, tmp_path) as kit:
        yield Commands(kit)


@pytest.fixture
def external_database(cluster: Cluster) -> Iterator[str]:
    """An empty database."""
    with fresh_database(cluster, "template0") as dsn:
        yield dsn


@pytest.fixture
def external_catalog(cluster: Cluster, catalog_template: str) -> Iterator[str]:
    """A database with pgSTAC, but without the schemas of dagmaster."""
    with fresh_database(cluster, catalog_template) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("DROP SCHEMA dagapp, dagapp_gateway CASCADE")
        yield dsn


@pytest.fixture
async def with_external(catalog_database: str, external_database: str, tmp_path: Path) -> AsyncIterator[Commands]:
    async with opened(catalog_database, tmp_path) as kit:
        yield Commands(kit, external_database)
