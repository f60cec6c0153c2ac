"""A kit of assets for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.operations.kit import Kit, opened


@pytest.fixture
async def kit(catalog_database: str, tmp_path: Path) -> AsyncIterator[Kit]:
    async with opened(catalog_database, tmp_path) as opened_kit:
        yield opened_kit
