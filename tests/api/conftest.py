"""A database for all those tests of a module that leave nothing behind."""

from collections.abc import Iterator

import pytest

from dagmaster.local.embedded import Cluster
from tests.conftest import fresh_database


@pytest.fixture(scope="module")
def shared_database(cluster: Cluster, template_database: str) -> Iterator[str]:
    with fresh_database(cluster, template_database) as dsn:
        yield dsn
