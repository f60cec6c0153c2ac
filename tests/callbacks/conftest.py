from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.callbacks.stage import ClockedCallbacks, Stage
from tests.operations.kit import Kit, opened


@pytest.fixture
def stage(database: str) -> Iterator[Stage]:
    stage = Stage(database)
    yield stage
    stage.connection.close()


@pytest.fixture
async def store(database: str) -> AsyncIterator[ClockedCallbacks]:
    store = ClockedCallbacks(database)
    yield store
    await store.close()


@pytest.fixture
async def kit(catalog_database: str, tmp_path: Path) -> AsyncIterator[Kit]:
    async with opened(catalog_database, tmp_path) as kit:
        yield kit
