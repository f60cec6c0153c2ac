"""`dagmaster db`: bring a database to the schema of this software, or look what is missing.

The database that DATABASE_URL (or POSTGRES_HOST) names is reached directly, so that it can be deployed to before anything
runs on it. Otherwise, and where a platform is named with --server, the platform is asked, and it is the platform's software
whose schema counts.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

import click

from dagmaster.cli.command import Group, State, pass_state
from dagmaster.errors import NotAllowed

if TYPE_CHECKING:
    from dagmaster.client.answers import Json


class Schema(Protocol):
    """A database's schema, here or on a platform."""

    def schema_status(self) -> "Json": ...

    def tables(self) -> "Json": ...

    def deploy(self) -> "Json": ...

    def migrate(self) -> "Json": ...

    def rebuild(self, confirm: str) -> "Json": ...


class _Direct:
    """As the API does it, on a database that is reached from here."""

    def __init__(self, state: State) -> None:
        self._dsn = state.dsn
        self._may_rebuild = state.settings.allow_rebuild
        self._has_catalog = state.settings.catalog_enabled

    def schema_status(self) -> "Json":
        from dagmaster.database.catalog import pgstac
        from dagmaster.database.schema import deploy

        found = deploy.status(self._dsn)
        facts = {name: value for name, value in asdict(found).items() if name != "tables"}
        return {**facts, "is_current": found.is_current, "catalog": pgstac.catalog_status(self._dsn).deployed}

    def tables(self) -> "Json":
        from dagmaster.database.schema import deploy

        return {"tables": deploy.status(self._dsn).tables}

    def deploy(self) -> "Json":
        from dagmaster.database.catalog import pgstac
        from dagmaster.database.schema import deploy

        deploy.deploy(self._dsn)
        pgstac.ensure_catalog(self._dsn, is_enabled=self._has_catalog)
        return self.schema_status()

    def migrate(self) -> "Json":
        from dagmaster.database.schema import deploy

        changes = deploy.migrate(self._dsn)
        found = deploy.status(self._dsn)
        return {"changes": changes, "pending": found.pending, "is_current": found.is_current}

    def rebuild(self, confirm: str) -> "Json":
        from psycopg.conninfo import conninfo_to_dict

        from dagmaster.database.schema import deploy

        if not self._may_rebuild:
            raise NotAllowed(
                "rebuilding is off",
                code="bootstrap.rebuild-off",
                hint="set ALLOW_REBUILD=true on a development machine",
            )
        if confirm != conninfo_to_dict(self._dsn).get("dbname"):
            raise NotAllowed(
                "--confirm is not the name of this database", code="bootstrap.not-confirmed",
                hint="its name is in the connection's address",
            )  # fmt: skip
        deploy.rebuild(self._dsn)
        return self.schema_status()


def _schema(state: State) -> Schema:
    return _Direct(state) if state.settings.dsn() and not state.server else state.client


@click.group(cls=Group)
def db() -> None:
    """Look at the database's schema, create and migrate it.

    With DATABASE_URL or POSTGRES_HOST set, that database is meant; otherwise, or with --server, that of the platform.
    """


@db.command("status")
@pass_state
def status(state: State) -> None:
    """Show what is deployed and what is missing."""
    found = _schema(state).schema_status()
    if state.json:
        state.emit(found)
        return
    from dagmaster.client.answers import SchemaStatus, read

    told = read(SchemaStatus, found)
    state.say(f"PostgreSQL {told.server_version}; schema {_in_words(told.deployed, told.is_current)}")
    state.say(f"software {told.software}, deployed {told.stored or 'never'}")
    state.say(f"catalogue pgSTAC {told.catalog}" if told.catalog else "no catalogue")
    for name, version in told.extensions.items():
        state.say(f"extension {name} {version}")
    for change in told.pending:
        state.say(f"pending: {change}")
    if told.pending:
        state.note(f"hint: run `dagmaster db {'migrate' if told.deployed else 'deploy'}`")


def _in_words(deployed: bool, is_current: bool) -> str:
    if not deployed:
        return "not deployed"
    return "up to date" if is_current else "of another version"


@db.command("tables")
@pass_state
def tables(state: State) -> None:
    """Show how many rows each table has: counted where that is quick, else estimated."""
    found = _schema(state).tables()
    if state.json:
        state.emit(found)
        return
    for table, rows in found["tables"].items():
        state.say(f"{rows:>12,} {table}")
    if not found["tables"]:
        state.note("no tables; hint: run `dagmaster db deploy`")


@db.command("ddl")
@pass_state
def ddl(state: State) -> None:
    """Print the SQL that `deploy` runs on an empty database. Needs neither a database nor a platform."""
    from dagmaster.database.schema import deploy

    text = state.client.ddl() if state.server else deploy.ddl()
    if state.json:
        state.emit({"ddl": text})
    else:
        state.say(text.rstrip())


@db.command("deploy")
@pass_state
def deploy_schema(state: State) -> None:
    """Create what is missing; what exists is left as it is."""
    _tell_deployed(state, _schema(state).deploy())


def _tell_deployed(state: State, found: "Json") -> None:
    if state.json:
        state.emit(found)
        return
    from dagmaster.client.answers import SchemaStatus, read

    told = read(SchemaStatus, found)
    state.say(f"deployed {told.stored}" if told.is_current else "deployed, but tables of another version remain")
    for change in told.pending:
        state.say(f"pending: {change}")
    if told.pending:
        state.note("hint: run `dagmaster db migrate`")


@db.command("migrate")
@pass_state
def migrate(state: State) -> None:
    """Add what the software has and the database lacks, beside a running platform."""
    found = _schema(state).migrate()
    if state.json:
        state.emit(found)
        return
    from dagmaster.client.answers import Migrated, read

    told = read(Migrated, found)
    for change in told.changes or ["nothing to change"]:
        state.say(change)
    for change in told.pending:
        state.say(f"left for you: {change}")


@db.command("rebuild")
@click.option("--confirm", required=True, metavar="NAME", help="The name of the database, to be sure that it is meant")
@pass_state
def rebuild(state: State, confirm: str) -> None:
    """Drop everything and deploy anew: for development, off unless ALLOW_REBUILD is set where the database is used."""
    _tell_deployed(state, _schema(state).rebuild(confirm))
