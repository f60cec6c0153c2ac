"""The database schema: show what is deployed, deploy and migrate.

Deploying is synchronous and slow, so it runs in a thread. Rebuilding drops everything: the settings must allow it, and
the request must confirm the name of the database.
"""

import asyncio
from types import ModuleType

from fastapi import APIRouter
from starlette.responses import PlainTextResponse

from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.client.models.schema import MigrationResult, RebuildRequest, SchemaStatus, TableSizes
from dagmaster.errors import InvalidRequest
from dagmaster.observe import log

router = APIRouter(prefix="/bootstrap", tags=["bootstrap"])
_log = log.get("api")


def _catalog() -> ModuleType:
    from dagmaster.database.catalog import pgstac

    return pgstac


def _deploy() -> ModuleType:
    """Imported when it is first needed, because it imports SQLAlchemy and Alembic."""
    from dagmaster.database.schema import deploy

    return deploy


@router.get("/status", operation_id="get_schema_status", summary="Get the status of the schema", responses=responses())
async def get_status(services: Services) -> SchemaStatus:
    return await _status(services.dsn)


async def _status(dsn: str) -> SchemaStatus:
    status = await asyncio.to_thread(_deploy().status, dsn)
    catalog = await asyncio.to_thread(_catalog().catalog_status, dsn)
    return SchemaStatus(
        deployed=status.deployed,
        is_current=status.is_current,
        software=status.software,
        stored=status.stored,
        pending=status.pending,
        server_version=status.server_version,
        extensions=status.extensions,
        catalog=catalog.deployed,
    )


@router.get("/tables", operation_id="get_tables", summary="Get the number of rows of each table", responses=responses())
async def get_tables(services: Services) -> TableSizes:
    return TableSizes(tables=(await asyncio.to_thread(_deploy().status, services.dsn)).tables)


@router.get(
    "/ddl",
    operation_id="get_ddl",
    summary="Get the SQL that `deploy` runs on an empty database",
    response_class=PlainTextResponse,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": "CREATE SCHEMA dagapp;"}}},
        **responses(),
    },
)
async def get_ddl() -> PlainTextResponse:
    return PlainTextResponse(await asyncio.to_thread(_deploy().ddl))


@router.post(
    "/deploy",
    operation_id="deploy_schema",
    summary="Create what is missing; existing objects are not changed",
    responses=responses(409),
)
async def deploy_schema(services: Services) -> SchemaStatus:
    await asyncio.to_thread(_deploy().deploy, services.dsn)
    await asyncio.to_thread(_catalog().ensure_catalog, services.dsn, is_enabled=services.settings.catalog_enabled)
    return await _status(services.dsn)


@router.post(
    "/migrate",
    operation_id="migrate_schema",
    summary="Add what the software has and the database lacks, while the platform runs",
    responses=responses(409),
)
async def migrate_schema(services: Services) -> MigrationResult:
    changes = await asyncio.to_thread(_deploy().migrate, services.dsn)
    status = await _status(services.dsn)
    return MigrationResult(changes=changes, pending=status.pending, is_current=status.is_current)


@router.post(
    "/rebuild",
    operation_id="rebuild_schema",
    summary="Drop everything and deploy again: for development only",
    responses=responses(409),
)
async def rebuild_schema(services: Services, rebuild: RebuildRequest) -> SchemaStatus:
    """Disabled unless ALLOW_REBUILD is set. Every job, event and result is deleted."""
    if not services.settings.allow_rebuild:
        raise InvalidRequest(
            "rebuilding is disabled",
            code="bootstrap.rebuild-off",
            hint="set ALLOW_REBUILD=true on a development machine",
        )
    name = await services.reads.database_name()
    if rebuild.confirm != name:
        raise InvalidRequest(
            "`confirm` is not the name of this database",
            code="bootstrap.not-confirmed",
            hint="the name is part of the database URL",
        )
    _log.warning("the schema is dropped and deployed again", database=name)
    await asyncio.to_thread(_deploy().rebuild, services.dsn)
    return await _status(services.dsn)
