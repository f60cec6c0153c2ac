"""Reads of requests are current, survive lost connections, and share few connections."""

import asyncio

import psycopg
import pytest

from dagmaster.database import pipeline, prepared_reads, queries
from dagmaster.database.pipeline import Call
from dagmaster.database.prepared_reads import PreparedReads
from dagmaster.errors import Unavailable

pytestmark = pytest.mark.requirement("C3")

STATEMENTS = {
    "one_visit": "SELECT number, name FROM visits WHERE number = %(number)s",
    "slow_visit": "SELECT number, name, pg_sleep(%(seconds)s)::text AS slept FROM visits WHERE number = 1",
    "own_pid": "SELECT pg_backend_pid() AS pid",
}


@pytest.fixture
async def reads(database, monkeypatch):
    for name, text in STATEMENTS.items():
        monkeypatch.setitem(queries.all_queries(), name, text)
    execute(database, "CREATE TABLE visits AS SELECT 1 AS number, 'one' AS name")
    reads = PreparedReads(database, "test-reads")
    yield reads
    await reads.close()


def execute(dsn: str, statement: str, *values):
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else []


def connections(dsn: str) -> int:
    ((count,),) = execute(dsn, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dagmaster-test-reads'")
    return count


async def test_each_read_sees_the_current_rows(reads, database):
    before = await reads.dicts("one_visit", {"number": 1})
    execute(database, "UPDATE visits SET name = 'another'")
    after = await reads.dicts("one_visit", {"number": 1})
    execute(database, "DELETE FROM visits")

    assert before == [{"number": 1, "name": "one"}]
    assert after == [{"number": 1, "name": "another"}]
    assert await reads.dicts("one_visit", {"number": 1}) == []


async def test_a_connection_that_the_server_has_ended_is_replaced(reads, database):
    ((pid),) = [row["pid"] for row in await reads.dicts("own_pid", {})]
    execute(database, "SELECT pg_terminate_backend(%s, 5000)", pid)

    (row,) = await reads.dicts("own_pid", {})

    assert row["pid"] != pid


async def test_a_cancelled_read_does_not_disturb_the_next_one(reads, database):
    task = asyncio.create_task(reads.dicts("slow_visit", {"seconds": 30}))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await reads.dicts("one_visit", {"number": 1}) == [{"number": 1, "name": "one"}]


async def test_after_a_refused_statement_the_next_one_works(reads, database):
    with pytest.raises(psycopg.DataError):
        await reads.dicts("one_visit", {"number": "not a number"})

    assert await reads.dicts("one_visit", {"number": 1}) == [{"number": 1, "name": "one"}]


async def test_many_reads_at_once_share_a_few_connections(reads, database):
    rows = await asyncio.gather(*(reads.dicts("slow_visit", {"seconds": 0.05}) for _ in range(20)))

    assert [row["name"] for (row,) in rows] == ["one"] * 20
    assert connections(database) == 4


async def test_reads_in_turn_use_one_connection(reads, database):
    for _ in range(5):
        await reads.dicts("one_visit", {"number": 1})

    assert connections(database) == 1


async def test_no_connection_stays_open_after_close(reads, database):
    await asyncio.gather(*(reads.dicts("one_visit", {"number": 1}) for _ in range(3)))

    await reads.close()

    for _ in range(100):  # the server notices the disconnect a moment later
        if not connections(database):
            break
        await asyncio.sleep(0.02)
    assert connections(database) == 0


async def test_a_read_that_gets_no_connection_in_time_fails_with_that_reason(reads, monkeypatch):
    monkeypatch.setattr("dagmaster.database.prepared_reads._MAX_WAIT_SECONDS", 0.2)
    busy = [asyncio.create_task(reads.dicts("slow_visit", {"seconds": 1})) for _ in range(4)]
    await asyncio.sleep(0.3)

    with pytest.raises(Unavailable, match="no connection to the database was free in time"):
        await reads.dicts("one_visit", {"number": 1})

    assert all(len(rows) == 1 for rows in await asyncio.gather(*busy))


async def test_a_server_that_does_not_exist_is_unavailable(reads, tmp_path):
    missing = PreparedReads(f"postgresql:///nothing?host={tmp_path}", "test-reads")

    with pytest.raises(Unavailable):
        await missing.dicts("own_pid", {})


def visit(number: int = 1) -> Call:
    return Call("one_visit", {"number": number})


@pytest.fixture
def round_trips(monkeypatch) -> list[list[str]]:
    """The names of the statements of each round trip."""
    sent = []

    async def execute_and_record(connection, steps):
        sent.append([step.name for step in steps])
        return await pipeline.execute(connection, steps)

    monkeypatch.setattr(prepared_reads, "execute", execute_and_record)
    return sent


async def test_an_expected_read_is_sent_with_the_one_before(reads, database, round_trips):
    with reads.expecting(visit()):
        (row,) = await reads.dicts("own_pid", {})
        expected = await reads.dicts("one_visit", {"number": 1})
        execute(database, "UPDATE visits SET name = 'another'")
        again = await reads.dicts("one_visit", {"number": 1})

    assert row["pid"] > 0
    assert expected == [{"number": 1, "name": "one"}]
    assert again == [{"number": 1, "name": "another"}]  # rows that were read in advance are used once
    assert round_trips == [["own_pid", "one_visit"], ["one_visit"]]


async def test_rows_that_were_expected_but_not_requested_are_never_used(reads, database, round_trips):
    with reads.expecting(visit()):
        await reads.dicts("own_pid", {})
        other = await reads.dicts("one_visit", {"number": 2})
        later = asyncio.create_task(_read_after(reads, event := asyncio.Event()))
        await asyncio.sleep(0)
    execute(database, "UPDATE visits SET name = 'another'")
    event.set()
    with reads.expecting(visit()):
        next_request = await reads.dicts("one_visit", {"number": 1})

    assert other == []
    assert await later == next_request == [{"number": 1, "name": "another"}]
    assert await reads.dicts("one_visit", {"number": 1}) == next_request
    assert round_trips[:2] == [["own_pid", "one_visit"], ["one_visit"]]


async def _read_after(reads: PreparedReads, event: asyncio.Event):
    """Read in a task that a request has started and that ends after the request."""
    await event.wait()
    return await reads.dicts("one_visit", {"number": 1})


async def test_requests_do_not_get_the_rows_of_each_other(reads, database):
    execute(database, "INSERT INTO visits SELECT number, 'of ' || number FROM generate_series(2, 40) AS number")

    async def request(number: int):
        with reads.expecting(visit(number)):
            await reads.dicts("own_pid", {})
            await asyncio.sleep(0)
            return await reads.dicts("one_visit", {"number": number})

    rows = await asyncio.gather(*(request(number) for number in range(2, 41)))

    assert rows == [[{"number": number, "name": f"of {number}"}] for number in range(2, 41)]


async def test_an_expected_read_that_fails_also_fails_the_one_before_and_leaves_no_rows(reads):
    with reads.expecting(Call("one_visit", {"number": "x"})):
        with pytest.raises(psycopg.Error):
            await reads.dicts("own_pid", {})
        with pytest.raises(psycopg.Error):
            await reads.dicts("one_visit", {"number": "x"})

    assert await reads.dicts("one_visit", {"number": 1}) == [{"number": 1, "name": "one"}]
