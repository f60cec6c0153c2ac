"""A kit of assets, and the chore that keeps the external zone up to date."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dagmaster.database.assets.external_copies import PostgresExternalCopies
from dagmaster.orchestrator.external_copies import ExternalCopyChore
from dagmaster.settings import Settings
from tests.operations.kit import Kit, opened


@pytest.fixture
async def kit(catalog_database: str, tmp_path: Path) -> AsyncIterator[Kit]:
    async with opened(catalog_database, tmp_path) as opened_kit:
        yield opened_kit


@pytest.fixture
async def chore(kit: Kit) -> AsyncIterator[ExternalCopyChore]:
    chore = ExternalCopyChore(Settings(), PostgresExternalCopies(kit.dsn), kit.library)
    yield chore
    await chore.close()
