"""The database schema: show what is deployed, deploy and migrate.

Deploying is synchronous and slow, so it runs in a thread. Rebuilding drops the schema with all its rows: the settings
must allow it, and the request must confirm the name of the database.
"""

import asyncio

from fastapi import APIRouter
from starlette.responses import PlainTextResponse

from dagmaster.access.permissions import Permission
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.client.models.schema import MigrationResult, RebuildRequest, SchemaStatus, TableSizes
from dagmaster.errors import InvalidRequest
from dagmaster.observe import log
from dagmaster.operations import schema
from dagmaster.web.authentication import requires

router = APIRouter(prefix="/bootstrap", tags=["bootstrap"])
_READS = [requires(Permission.PLATFORM_READ)]
_WRITES = [requires(Permission.SCHEMA_WRITE)]
_log = log.get("api")


@router.get(
    "/status",
    operation_id="get_schema_status",
    summary="Get the status of the schema",
    responses=responses(),
    dependencies=_READS,
)
async def get_status(services: Services) -> SchemaStatus:
    return await asyncio.to_thread(schema.schema_status, services.dsn)


@router.get(
    "/tables",
    operation_id="get_tables",
    summary="Get the number of rows of each table",
    responses=responses(),
    dependencies=_READS,
)
async def get_tables(services: Services) -> TableSizes:
    return await asyncio.to_thread(schema.table_sizes, services.dsn)


@router.get(
    "/ddl",
    operation_id="get_ddl",
    summary="Get the SQL that `deploy` runs on an empty database",
    response_class=PlainTextResponse,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": "CREATE SCHEMA dagapp;"}}},
        **responses(),
    },
    dependencies=_READS,
)
async def get_ddl() -> PlainTextResponse:
    return PlainTextResponse(await asyncio.to_thread(schema.ddl))


@router.post(
    "/deploy",
    operation_id="deploy_schema",
    summary="Create what is missing; existing objects are not changed",
    responses=responses(409),
    dependencies=_WRITES,
)
async def deploy_schema(services: Services) -> SchemaStatus:
    has_catalog = services.settings.catalog_enabled
    return await asyncio.to_thread(schema.deploy_schema, services.dsn, has_catalog=has_catalog)


@router.post(
    "/migrate",
    operation_id="migrate_schema",
    summary="Migrate the schema of the database, while the platform runs",
    responses=responses(409),
    dependencies=_WRITES,
)
async def migrate_schema(services: Services) -> MigrationResult:
    return await asyncio.to_thread(schema.migrate_schema, services.dsn)


@router.post(
    "/rebuild",
    operation_id="rebuild_schema",
    summary="Drop the schema and deploy it again: for development only",
    responses=responses(409),
    dependencies=_WRITES,
)
async def rebuild_schema(services: Services, rebuild: RebuildRequest) -> SchemaStatus:
    """Disabled unless ALLOW_REBUILD is set. All rows of the schema are deleted. The STAC catalogue is not dropped."""
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
            hint="pass the name of the database, as in the database URL",
        )
    _log.warning("the schema is dropped and deployed again", database=name)
    return await asyncio.to_thread(schema.rebuild_schema, services.dsn)
