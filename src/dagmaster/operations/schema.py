"""The schema of a database, with its STAC catalogue: show what is deployed, deploy, migrate, rebuild.

Synchronous, and slow. SQLAlchemy and Alembic are imported when they are first needed.
"""

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

from dagmaster.client.models.schema import MigrationResult, SchemaStatus, TableSizes
from dagmaster.errors import NotAllowed

if TYPE_CHECKING:
    from dagmaster.operations.assets.adopt import Adoption


def schema_status(dsn: str) -> SchemaStatus:
    from dagmaster.database.catalog import pgstac
    from dagmaster.database.schema import deploy

    status = deploy.status(dsn)
    facts = {name: value for name, value in asdict(status).items() if name != "tables"}
    return SchemaStatus(**facts, is_current=status.is_current, catalog=pgstac.catalog_status(dsn).deployed)


def table_sizes(dsn: str) -> TableSizes:
    from dagmaster.database.schema import deploy

    return TableSizes(tables=deploy.status(dsn).tables)


def ddl() -> str:
    from dagmaster.database.schema import deploy

    return deploy.ddl()


def deploy_schema(dsn: str, *, has_catalog: bool) -> SchemaStatus:
    """Create what is missing; existing objects are not changed."""
    from dagmaster.database.catalog import pgstac
    from dagmaster.database.schema import deploy

    deploy.deploy(dsn)
    pgstac.ensure_catalog(dsn, is_enabled=has_catalog)
    pending = _ensure_gateway_role(dsn)
    status = schema_status(dsn)
    if status.is_current:  # otherwise the migration adopts the datasets
        adopt_all(dsn)
    return status.model_copy(update={"pending": [*status.pending, *pending]})


def migrate_schema(dsn: str) -> MigrationResult:
    """Add what the schema lacks, and let datasets of earlier releases become assets."""
    from dagmaster.database.schema import deploy

    result = MigrationResult(**asdict(deploy.run_migration(dsn)))
    adoption = adopt_all(dsn)
    adopted = [f"adopted dataset {dataset_id}" for dataset_id in adoption.datasets]
    pending = _ensure_gateway_role(dsn)
    return result.model_copy(
        update={
            "changes": [*result.changes, *adopted],
            "pending": [*result.pending, *pending],
            "warnings": adoption.refusals,
        }
    )


def adopt_all(dsn: str) -> "Adoption":
    """Let datasets of earlier releases become assets."""
    from dagmaster.database.assets.adopt import AdoptedAssets
    from dagmaster.operations.assets.adopt import adopt_and_report

    async def adopt() -> "Adoption":
        async with AdoptedAssets(dsn, role="adoption", size=1) as store:
            return await adopt_and_report(store)

    return asyncio.run(adopt())


def gateway_database_url(dsn: str) -> str:
    """The DSN of the gateway's role, with a new password."""
    from dagmaster.database.schema.gateway_role import ensure_gateway_role

    return ensure_gateway_role(dsn, with_password=True)


def _ensure_gateway_role(dsn: str) -> list[str]:
    """Create or update the gateway's role. Returns what must be done manually."""
    from dagmaster.database.schema.gateway_role import ensure_gateway_role

    try:
        ensure_gateway_role(dsn)
    except NotAllowed as error:
        return [f"{error.message} ({error.hint})"]
    return []


def grant_to_platform(dsn: str, role: str) -> None:
    """Give the role of running processes, and that of map servers if there is one, their rights on a schema that
    another role owns."""
    from dagmaster.database.schema.platform_role import grant_to_maps, grant_to_platform

    grant_to_platform(dsn, role)
    grant_to_maps(dsn)


def rebuild_schema(dsn: str) -> SchemaStatus:
    """Drop the schema and deploy it again. The STAC catalogue stays. The caller has checked that this is allowed and
    confirmed. The gateway's views are dropped with the tables, so its role needs its rights again."""
    from dagmaster.database.schema import deploy

    deploy.rebuild(dsn)
    pending = _ensure_gateway_role(dsn)
    status = schema_status(dsn)
    return status.model_copy(update={"pending": [*status.pending, *pending]})
