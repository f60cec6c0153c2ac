"""`dagmaster db`: deploy and migrate the schema of a database, or show what is missing.

The database of DATABASE_URL (or POSTGRES_HOST) is used directly, so that the schema can be deployed before the first
start. Otherwise, and with --server, a request goes to the platform, which applies its own version of the schema.
"""

from typing import TYPE_CHECKING, Protocol

import click

from dagmaster.cli.command import Group, State, pass_state

if TYPE_CHECKING:
    from dagmaster.client.models.base import Json
    from dagmaster.client.models.schema import SchemaStatus


class Schema(Protocol):
    """The schema of a database, reached directly or through a platform."""

    def schema_status(self) -> "Json": ...

    def tables(self) -> "Json": ...

    def deploy(self) -> "Json": ...

    def migrate(self) -> "Json": ...

    def rebuild(self, confirm: str) -> "Json": ...


def _schema(state: State) -> Schema:
    if state.server or not state.settings.dsn():
        return state.client
    from dagmaster.cli.direct_schema import DirectSchema

    return DirectSchema(_administrator_dsn(state), state.settings)


def _administrator_dsn(state: State) -> str:
    """The connection string for changes of the schema."""
    from dagmaster.database.token_login import administrator

    return administrator(state.settings, state.dsn)


@click.group(cls=Group)
def db() -> None:
    """Show, deploy and migrate the schema of the database.

    Uses the database of DATABASE_URL or POSTGRES_HOST if one is set; otherwise, or with --server, that of the platform.
    """


@db.command("status")
@pass_state
def status(state: State) -> None:
    """Show what is deployed and what is missing."""
    response = _schema(state).schema_status()
    if state.json:
        state.emit(response)
        return
    from dagmaster.client.models.base import read
    from dagmaster.client.models.schema import SchemaStatus

    schema = read(SchemaStatus, response)
    state.say(f"PostgreSQL {schema.server_version}; schema {_schema_text(schema.deployed, schema.is_current)}")
    state.say(f"software {schema.software}, deployed {schema.stored or 'never'}")
    state.say(f"catalogue pgSTAC {schema.catalog}" if schema.catalog else "no catalogue")
    for name, version in schema.extensions.items():
        state.say(f"extension {name} {version}")
    _print_pending(state, schema)


def _print_pending(state: State, schema: "SchemaStatus") -> None:
    for change in schema.pending:
        state.say(f"pending: {change}")
    if schema.pending:
        state.note(f"hint: run `dagmaster db {'migrate' if schema.deployed else 'deploy'}`")


def _schema_text(deployed: bool, is_current: bool) -> str:
    if not deployed:
        return "not deployed"
    return "up to date" if is_current else "of another version"


@db.command("tables")
@pass_state
def tables(state: State) -> None:
    """Show how many rows each table has: counted if that is fast, otherwise estimated."""
    response = _schema(state).tables()
    if state.json:
        state.emit(response)
        return
    for table, rows in response["tables"].items():
        state.say(f"{rows:>12,} {table}")
    if not response["tables"]:
        state.note("no tables; hint: run `dagmaster db deploy`")


@db.command("ddl")
@pass_state
def ddl(state: State) -> None:
    """Print the SQL that `deploy` runs on an empty database. Needs neither a database nor a platform."""
    from dagmaster.operations import schema

    text = state.client.ddl() if state.server else schema.ddl()
    state.print_result({"ddl": text}, text.rstrip())


@db.command("deploy")
@click.option(
    "--migrate", "then_migrate", is_flag=True, help="Also migrate existing tables, as `dagmaster db migrate` does"
)
@pass_state
def deploy_schema(state: State, then_migrate: bool) -> None:
    """Create the missing parts of the schema; existing tables stay as they are unless --migrate is given."""
    schema = _schema(state)
    deployed = schema.deploy()
    if not (then_migrate and state.json):
        _print_deployed(state, deployed)
    if then_migrate:
        _print_migrated(state, schema.migrate())


def _print_deployed(state: State, response: "Json") -> None:
    if state.json:
        state.emit(response)
        return
    from dagmaster.client.models.base import read
    from dagmaster.client.models.schema import SchemaStatus

    schema = read(SchemaStatus, response)
    state.say(f"deployed {schema.stored}" if schema.is_current else "deployed, but some tables are of another version")
    _print_pending(state, schema)


@db.command("gateway-role")
@pass_state
def gateway_role(state: State) -> None:
    """Give the gateway's database role a new password, and print its connection string for GATEWAY_DATABASE_URL.

    The role may select from views, and nothing else. A gateway that uses the previous password must get the new one.
    """
    from dagmaster.operations.schema import gateway_database_url

    state.require_no_server("the role is created in the database", "set DATABASE_URL")
    url = gateway_database_url(_administrator_dsn(state))
    state.print_result({"gateway_database_url": url}, url)


@db.command("migrate")
@pass_state
def migrate(state: State) -> None:
    """Add missing tables, columns, indexes, triggers and views; the platform may keep running."""
    _print_migrated(state, _schema(state).migrate())


def _print_migrated(state: State, response: "Json") -> None:
    if state.json:
        state.emit(response)
        return
    from dagmaster.client.models.base import read
    from dagmaster.client.models.schema import MigrationResult

    migration = read(MigrationResult, response)
    unchanged = (
        "another process has migrated the schema meanwhile" if migration.done_by_another else "nothing to change"
    )
    for change in migration.changes or [unchanged]:
        state.say(change)
    for change in migration.pending:
        state.say(f"to be done by hand: {change}")
    for warning in migration.warnings:
        state.say(f"warning: {warning}")


@db.command("rebuild")
@click.option("--confirm", required=True, metavar="NAME", help="The name of the database, as a confirmation")
@pass_state
def rebuild(state: State, confirm: str) -> None:
    """Drop the schema of the platform with all its rows, and deploy it again. The STAC catalogue is not dropped.

    For development only: disabled unless ALLOW_REBUILD is set.
    """
    _print_deployed(state, _schema(state).rebuild(confirm))
