"""Errors of the database end a command with the right exit code and a hint, and are not reported as bugs."""

import psycopg
import pytest

from tests.conftest import administrator

COMMANDS = (("verify-history", "--all"), ("orchestrator", "--no-api"), ("worker",), ("db", "status"))
NEEDS_SCHEMA = COMMANDS[:3]


@pytest.fixture(autouse=True)
def no_ports(monkeypatch):
    monkeypatch.setenv("HEALTH_ENABLED", "false")


@pytest.mark.requirement("M2")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("address", ["garbage", "mysql://me:hunter2@h/db", "postgresql://me:hunter2@[::1/db"])
def test_a_malformed_database_url_is_reported_as_an_invalid_setting(dagmaster, monkeypatch, command, address):
    monkeypatch.setenv("DATABASE_URL", address)

    result = dagmaster(*command)

    assert result.code == 2, result.err
    assert "DATABASE_URL is not the address of a database" in result.err
    assert "hunter2" not in result.out + result.err


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("command", NEEDS_SCHEMA, ids=" ".join)
def test_a_database_without_the_schema_is_reported_as_unavailable(dagmaster, monkeypatch, empty_database, command):
    monkeypatch.setenv("DATABASE_URL", empty_database)

    result = dagmaster(*command)

    assert result.code == 5, result.err
    assert "hint: run `dagmaster db deploy`" in result.err


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_unknown_database_is_reported_as_not_found(dagmaster, monkeypatch, cluster, command):
    monkeypatch.setenv("DATABASE_URL", cluster.dsn_of("nothing_here"))

    result = dagmaster(*command)

    assert result.code == 4, result.err
    assert "createdb" in result.err


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_role_without_rights_is_reported_as_not_allowed(dagmaster, monkeypatch, cluster, database, command):
    with administrator(cluster) as connection:
        connection.execute("DROP ROLE IF EXISTS bystander")
        connection.execute("CREATE ROLE bystander LOGIN")
    monkeypatch.setenv("DATABASE_URL", database.replace("postgres@", "bystander@"))

    result = dagmaster(*command)

    assert result.code == 3, result.err
    assert "permission denied for schema dagapp" in result.err


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_unknown_role_is_reported_as_not_allowed(dagmaster, monkeypatch, cluster, command):
    monkeypatch.setenv("DATABASE_URL", cluster.dsn_of("postgres").replace("postgres@", "unknown_role@"))

    result = dagmaster(*command)

    assert result.code == 3, result.err
    assert 'role "unknown_role" does not exist' in result.err


@pytest.mark.requirement("M3")
def test_deploying_to_a_read_only_server_is_refused(dagmaster, monkeypatch, empty_database):
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET default_transaction_read_only = on")
    monkeypatch.setenv("DATABASE_URL", empty_database)

    result = dagmaster("db", "deploy")

    assert result.code == 5
    assert "it is a standby, or set to read-only" in result.err
