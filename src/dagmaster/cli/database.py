"""`dagmaster db`: bring a database to the schema of this software, or look what is missing."""

from dataclasses import asdict

import click

from dagmaster.cli.command import Group, State, pass_state


@click.group(cls=Group)
def db() -> None:
    """Look at the database's schema, create and migrate it."""


@db.command("status")
@pass_state
def status(state: State) -> None:
    """Show what is deployed, what is missing, and how many rows there are."""
    from dagmaster.database import deploy

    found = deploy.status(state.dsn)
    if state.json:
        state.emit({**asdict(found), "is_current": found.is_current})
        return
    state.say(f"PostgreSQL {found.server_version}; schema {_in_words(found.deployed, found.is_current)}")
    state.say(f"software {found.software}, deployed {found.stored or 'never'}")
    for name, version in found.extensions.items():
        state.say(f"extension {name} {version}")
    for change in found.pending:
        state.say(f"pending: {change}")
    for table, rows in found.tables.items():
        state.say(f"{rows:>12,} {table}")
    if found.pending:
        state.note(f"hint: run `dagmaster db {'migrate' if found.deployed else 'deploy'}`")


def _in_words(deployed: bool, is_current: bool) -> str:
    if not deployed:
        return "not deployed"
    return "up to date" if is_current else "of another version"


@db.command("ddl")
@pass_state
def ddl(state: State) -> None:
    """Print the SQL that `deploy` runs on an empty database."""
    from dagmaster.database import deploy

    text = deploy.ddl()
    if state.json:
        state.emit({"ddl": text, "fingerprint": deploy.fingerprint()})
    else:
        state.say(text.rstrip())


@db.command("deploy")
@pass_state
def deploy_schema(state: State) -> None:
    """Create what is missing; what exists is left as it is."""
    from dagmaster.database import deploy

    dsn = state.dsn
    deploy.deploy(dsn)
    found = deploy.status(dsn)
    if state.json:
        state.emit({"deployed": found.deployed, "fingerprint": found.stored, "pending": found.pending})
        return
    state.say(f"deployed {found.stored}" if found.is_current else "deployed, but tables of another version remain")
    for change in found.pending:
        state.say(f"pending: {change}")
    if found.pending:
        state.note("hint: run `dagmaster db migrate`")


@db.command("migrate")
@pass_state
def migrate(state: State) -> None:
    """Add what the software has and the database lacks, beside a running platform."""
    from dagmaster.database import deploy

    dsn = state.dsn
    changes = deploy.migrate(dsn)
    found = deploy.status(dsn)
    if state.json:
        state.emit({"changes": changes, "pending": found.pending, "is_current": found.is_current})
        return
    for change in changes or ["nothing to change"]:
        state.say(change)
    for change in found.pending:
        state.say(f"left for you: {change}")
