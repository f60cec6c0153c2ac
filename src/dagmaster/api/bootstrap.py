"""The database's schema: what is deployed, and bringing it to this software's.

Deploying is synchronous and takes a while: it runs in a thread. Rebuilding drops everything, so it must be allowed by the
settings, and whoever asks for it names the database it is about.
"""

import asyncio
from types import ModuleType
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import PlainTextResponse

from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.errors import InvalidRequest
from dagmaster.observe import log

router = APIRouter(prefix="/bootstrap", tags=["bootstrap"])
_log = log.get("api")


def _catalog() -> ModuleType:
    from dagmaster.database.catalog import pgstac

    return pgstac


def _deploy() -> ModuleType:
    """Imported when first needed: it brings SQLAlchemy and Alembic along."""
    from dagmaster.database.schema import deploy

    return deploy


class SchemaStatus(BaseModel):
    """What a database has. Fingerprints stand for a whole schema: two equal ones make equal schemas."""

    deployed: bool
    is_current: bool
    software: str = Field(description="Fingerprint of this software's schema")
    stored: str | None = Field(description="Fingerprint of the last deployment")
    pending: list[str] = Field(description="What `migrate` would do, or leaves for you")
    server_version: str
    extensions: dict[str, str]
    catalog: str | None = Field(description="Version of pgSTAC that is deployed; null where there is no STAC catalogue")


class Tables(BaseModel):
    """Rows of each table: counted where that is quick, else estimated."""

    tables: dict[str, int]


class Migrated(BaseModel):
    changes: list[str]
    pending: list[str]
    is_current: bool


class Rebuild(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"confirm": "dagmaster"}]})

    confirm: Annotated[str, Field(max_length=63, description="The name of the database, to be sure that it is meant")]


@router.get(
    "/status", operation_id="get_schema_status", summary="What is deployed and what is missing", responses=responses()
)
async def get_status(services: Services) -> SchemaStatus:
    return await _status(services.dsn)


async def _status(dsn: str) -> SchemaStatus:
    found = await asyncio.to_thread(_deploy().status, dsn)
    catalog = await asyncio.to_thread(_catalog().catalog_status, dsn)
    return SchemaStatus(
        deployed=found.deployed, is_current=found.is_current, software=found.software, stored=found.stored,
        pending=found.pending, server_version=found.server_version, extensions=found.extensions,
        catalog=catalog.deployed,
    )  # fmt: skip


@router.get("/tables", operation_id="get_tables", summary="How many rows each table has", responses=responses())
async def get_tables(services: Services) -> Tables:
    return Tables(tables=(await asyncio.to_thread(_deploy().status, services.dsn)).tables)


@router.get(
    "/ddl",
    operation_id="get_ddl",
    summary="The SQL that `deploy` runs on an empty database",
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
    summary="Create what is missing; what exists is left as it is",
    responses=responses(409),
)
async def deploy_schema(services: Services) -> SchemaStatus:
    await asyncio.to_thread(_deploy().deploy, services.dsn)
    await asyncio.to_thread(_catalog().ensure_catalog, services.dsn, is_enabled=services.settings.catalog_enabled)
    return await _status(services.dsn)


@router.post(
    "/migrate",
    operation_id="migrate_schema",
    summary="Add what the software has and the database lacks, beside a running platform",
    responses=responses(409),
)
async def migrate_schema(services: Services) -> Migrated:
    changes = await asyncio.to_thread(_deploy().migrate, services.dsn)
    status = await _status(services.dsn)
    return Migrated(changes=changes, pending=status.pending, is_current=status.is_current)


@router.post(
    "/rebuild",
    operation_id="rebuild_schema",
    summary="Drop everything and deploy anew: development only",
    responses=responses(409),
)
async def rebuild_schema(services: Services, rebuild: Rebuild) -> SchemaStatus:
    """Off unless ALLOW_REBUILD is set. Every job, event and result is gone afterwards."""
    if not services.settings.allow_rebuild:
        raise InvalidRequest(
            "rebuilding is off", code="bootstrap.rebuild-off", hint="set ALLOW_REBUILD=true on a development machine"
        )
    name = await services.reads.database_name()
    if rebuild.confirm != name:
        raise InvalidRequest(
            "`confirm` is not the name of this database", code="bootstrap.not-confirmed",
            hint="its name is in the connection's address",
        )  # fmt: skip
    _log.warning("everything is dropped and deployed anew", database=name)
    await asyncio.to_thread(_deploy().rebuild, services.dsn)
    return await _status(services.dsn)
