"""The schema of a database, with its STAC catalogue: show what is deployed, deploy, migrate, rebuild.

Synchronous, and slow. SQLAlchemy and Alembic are imported when they are first needed.
"""

from dataclasses import asdict

from dagmaster.client.models.schema import MigrationResult, SchemaStatus, TableSizes


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
    return schema_status(dsn)


def migrate_schema(dsn: str) -> MigrationResult:
    from dagmaster.database.schema import deploy

    return MigrationResult(**asdict(deploy.run_migration(dsn)))


def rebuild_schema(dsn: str) -> SchemaStatus:
    """Drop everything and deploy again. The caller has checked that this is allowed and confirmed."""
    from dagmaster.database.schema import deploy

    deploy.rebuild(dsn)
    return schema_status(dsn)
