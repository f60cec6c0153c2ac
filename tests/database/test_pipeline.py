"""Statements that share a round trip do what they would do one by one."""

import asyncio
from uuid import UUID, uuid4

import psycopg
import pytest

from dagmaster.database import pipeline, queries
from dagmaster.database.connect import BY_KEY, connect
from dagmaster.database.notify.postgres import PostgresNotifier
from dagmaster.database.pipeline import BEGIN, BREAK, COMMIT, Call

pytestmark = pytest.mark.requirement("E9")

STATEMENTS = {
    "echo": (
        "SELECT %(text)s::text, %(number)s::int, %(share)s::float8, %(flag)s::boolean, %(key)s::uuid, %(none)s::text"
    ),
    "echo_lists": "SELECT %(texts)s::text[], %(numbers)s::bigint[], %(keys)s::uuid[]",
    "sizes": "SELECT octet_length(%(text)s::text), repeat('x', %(count)s::int)",
    "put": "INSERT INTO visits VALUES (%(number)s::int) RETURNING number",
    "visits": "SELECT number FROM visits ORDER BY number",
    "divide": "SELECT 1 / %(number)s::int",
    "sleep": "SELECT pg_sleep(60)::text",
    "touch": (
        "UPDATE visits v SET number = v.number FROM unnest(%(numbers)s::int[]) AS k (number) WHERE v.number = k.number"
    ),
    "twice": "SELECT %(text)s::text || %(text)s::text",
}


@pytest.fixture
async def connection(database, monkeypatch):
    for name, text in STATEMENTS.items():
        monkeypatch.setitem(queries.all_queries(), name, text)
    connection = await connect(database, role="test")
    await connection.execute("CREATE TABLE visits (number int PRIMARY KEY)")
    yield connection
    await connection.close()


async def test_values_arrive_unchanged(connection):
    key = uuid4()
    values = {"text": "ä'\"\\ {,} \n%s", "number": -7, "share": 0.1, "flag": True, "key": key, "none": None}

    responses = await pipeline.execute(connection, [Call("echo", values)])

    assert responses == {"echo": [("ä'\"\\ {,} \n%s", -7, 0.1, True, key, None)]}


@pytest.mark.parametrize("texts", [[], [""], ["a,b", 'say "hi"', "back\\slash", "NULL", " {x} ", "ü\n"]])
async def test_lists_arrive_unchanged(connection, texts):
    keys = [UUID(int=n) for n in range(len(texts))]
    values = {"texts": texts, "numbers": list(range(len(texts))), "keys": keys}

    ((response,),) = (await pipeline.execute(connection, [Call("echo_lists", values)])).values()

    assert response == (texts, list(range(len(texts))), keys)


async def test_a_plan_for_an_almost_empty_table_is_replaced_after_a_large_statement(database, connection):
    async def plan() -> str:
        cursor = await connection.execute("EXPLAIN (COSTS OFF) EXECUTE touch ('{1,2}')", prepare=False)
        return "\n".join(row[0] for row in await cursor.fetchall())

    for name, value in BY_KEY.items():
        await connection.execute(f"SET {name} = {value}")
    await connection.execute("INSERT INTO visits VALUES (1)")
    await connection.execute("ANALYZE visits")
    await pipeline.execute(connection, [Call("touch", {"numbers": [1]})])
    before = await plan()
    await connection.execute("INSERT INTO visits SELECT generate_series(2, 5000)")

    await pipeline.execute(connection, [Call("touch", {"numbers": [1]})])
    kept = await plan()
    await pipeline.execute(connection, [BEGIN, Call("touch", {"numbers": list(range(1, 5000))}), COMMIT])
    after = await plan()

    assert "Index Cond" not in before  # reads the whole table for each number
    assert kept == before
    assert "Index Cond: (number = k.number)" in after


async def test_a_parameter_can_be_used_twice(connection):
    assert (await pipeline.execute(connection, [Call("twice", {"text": "ab"})]))["twice"] == [("abab",)]


@pytest.mark.parametrize("value", ["half\0whole", ["half\0whole"]])
async def test_a_text_with_a_nul_character_is_refused(connection, value):
    name, values = ("twice", {"text": value}) if isinstance(value, str) else ("echo_lists", {"texts": value})

    with pytest.raises(psycopg.DataError, match="NUL"):
        await pipeline.execute(connection, [Call(name, {"numbers": [], "keys": []} | values)])


async def test_a_value_of_an_unsupported_type_is_refused(connection):
    with pytest.raises(TypeError, match="of type dict can't be sent"):
        await pipeline.execute(connection, [Call("twice", {"text": {}})])


async def test_a_transaction_in_two_round_trips_is_one_transaction(connection, database):
    async with await psycopg.AsyncConnection.connect(database) as other:

        async def seen():
            rows = await (await other.execute("SELECT number FROM visits")).fetchall()
            await other.rollback()
            return rows

        await pipeline.execute(connection, [BEGIN, Call("put", {"number": 1})])
        assert await seen() == []

        responses = await pipeline.execute(connection, [Call("visits"), COMMIT])

        assert responses == {"visits": [(1,)]}
        assert await seen() == [(1,)]


async def test_an_error_rolls_back_its_transaction_and_keeps_its_type(connection, database):
    steps = [BEGIN, Call("put", {"number": 1}), Call("divide", {"number": 0}), COMMIT]

    with pytest.raises(psycopg.errors.DivisionByZero):
        await pipeline.execute(connection, steps)

    async with await psycopg.AsyncConnection.connect(database) as other:
        assert await (await other.execute("SELECT number FROM visits")).fetchall() == []


async def test_statements_before_a_break_stay_committed_after_an_error(connection, database):
    with pytest.raises(psycopg.errors.DivisionByZero):
        await pipeline.execute(connection, [Call("put", {"number": 1}), BREAK, Call("divide", {"number": 0})])

    async with await psycopg.AsyncConnection.connect(database) as other:
        assert await (await other.execute("SELECT number FROM visits")).fetchall() == [(1,)]


async def test_large_values_can_be_sent_and_received_at_the_same_time(connection):
    megabytes = 32 * 1024 * 1024
    steps = [Call("sizes", {"text": "y" * megabytes, "count": megabytes}), Call("twice", {"text": "z" * megabytes})]

    async with asyncio.timeout(60):
        responses = await pipeline.execute(connection, steps)

    ((length, text),) = responses["sizes"]
    assert (length, len(text), len(responses["twice"][0][0])) == (megabytes, megabytes, 2 * megabytes)


async def test_a_cancelled_round_trip_ends_on_the_server_too(connection, database):
    pid = connection.info.backend_pid
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await pipeline.execute(connection, [Call("sleep")])
    await connection.close()

    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
        for _ in range(100):
            busy = await other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state = 'active'", [pid])
            if await busy.fetchone() is None:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("the statement still runs")


async def test_a_lost_connection_is_an_operational_error(connection, database):
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
        running = asyncio.create_task(pipeline.execute(connection, [Call("sleep")]))
        await asyncio.sleep(0.1)
        await other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])

    with pytest.raises(psycopg.OperationalError):
        await running


async def test_a_notification_sent_with_a_commit_arrives_after_it(connection, database):
    """A listener reads at once, and must see the change that it is notified of."""
    notifier = PostgresNotifier(database, ["results"])
    notifier.start()
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
        await notifier.wait(5)  # now it listens
        for number in range(50):
            notify = Call("notify_channels", {"channels": ["dagmaster_results"]})
            running = asyncio.create_task(
                pipeline.execute(connection, [Call("put", {"number": number}), BREAK, notify])
            )
            assert await notifier.wait(5) == {"results"}
            row = await (await other.execute("SELECT count(*) FROM visits")).fetchone()
            assert row == (number + 1,)
            await running
    await notifier.close()
