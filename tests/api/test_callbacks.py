"""Operators list callbacks with their deliveries and repeat them; administrators rotate the secrets that sign them."""

import asyncio
import json
from collections.abc import Iterator
from uuid import uuid4

import pytest

from dagmaster.access.caller import Caller, Scope
from dagmaster.access.permissions import may
from dagmaster.api import callback_events
from dagmaster.callbacks.schedule import CallbackState, Consequence, DeliveryAttempt
from dagmaster.cli.main import run
from dagmaster.database.callbacks.rows import CallbackLimits
from dagmaster.database.callbacks.store import PostgresCallbacks
from dagmaster.observe import log
from dagmaster.web.authentication import permission_of
from tests.api.serving import V1, api, app_of, ok, pages_of, served
from tests.callbacks.stage import Stage

pytestmark = pytest.mark.requirement("E24")

LIMITS = CallbackLimits(lease_seconds=60, per_receiver=100, max_tries=3)


@pytest.fixture
def stage(database: str) -> Iterator[Stage]:
    stage = Stage(database)
    yield stage
    stage.connection.close()


async def end(database: str, request_id: str, attempt: DeliveryAttempt, state: CallbackState) -> None:
    """Record that the attempt for one request has ended; attempts for other requests are still being made."""
    store = PostgresCallbacks(database, "test")
    for callback in (await store.claim(uuid4(), 100, LIMITS)).callbacks:
        if callback.request_id == request_id:
            await store.finish(callback, attempt, Consequence(state))
    await store.close()


async def test_callbacks_are_listed_by_request_platform_and_state(database, stage):
    for number in range(5):
        stage.record_callbacks(f"r{number}", platform_id="ddh" if number % 2 else "arcgis")
    await end(database, "r1", DeliveryAttempt(204), CallbackState.DELIVERED)
    async with api(database) as client:
        pages = await pages_of(client, f"{V1}/callbacks", limit=2)
        of_ddh = await ok(client.get(f"{V1}/callbacks", params={"platform_id": "ddh"}))
        delivered = await ok(client.get(f"{V1}/callbacks", params={"state": "delivered"}))
        of_request = await ok(client.get(f"{V1}/callbacks", params={"request_id": "r3"}))
        wrong = await client.get(f"{V1}/callbacks", params={"state": "lost"})

    assert [[row["request_id"] for row in page] for page in pages] == [["r4", "r3"], ["r2", "r1"], ["r0"]]
    assert [row["request_id"] for row in of_ddh["items"]] == ["r3", "r1"]
    (row,) = delivered["items"]
    assert (row["request_id"], row["last_status_code"], row["attempts"]) == ("r1", 204, 1)
    assert [row["is_under_way"] for row in of_request["items"]] == [True]
    assert wrong.status_code == 422


async def test_a_callback_has_its_payload_and_its_attempts(database, stage):
    stage.record_callbacks("r", url="https://hooks.example/x?token=canary-token&a=1")
    await end(database, "r", DeliveryAttempt(error="connection refused"), CallbackState.FAILED)
    (row,) = stage.callbacks()
    async with api(database, callback_result_url="https://gateway.example") as client:
        shown = await ok(client.get(f"{V1}/callbacks/{row['callback_id']}"))
        unknown = await client.get(f"{V1}/callbacks/{uuid4()}")

    assert shown["payload"] == {
        "request_id": "r",
        "status": "approved",
        "result_url": "https://gateway.example/api/platform/status/r",
    }
    (delivery,) = shown["deliveries"]
    assert (delivery["number"], delivery["error"]) == (1, "connection refused")
    assert shown["last_error"] == "connection refused"
    assert "canary" not in json.dumps(shown)
    assert unknown.status_code == 404


async def test_a_callback_is_repeated_by_an_operator(database, stage):
    stage.record_callbacks("r")
    stage.record_callbacks("busy")
    await end(database, "r", DeliveryAttempt(500), CallbackState.FAILED)
    callbacks = {row["request_id"]: row["callback_id"] for row in stage.callbacks()}
    async with api(database) as client:
        repeated = await ok(client.post(f"{V1}/callbacks/{callbacks['r']}/repeat"), 202)
        busy = await client.post(f"{V1}/callbacks/{callbacks['busy']}/repeat")
        unknown = await client.post(f"{V1}/callbacks/{uuid4()}/repeat")

    assert (repeated["state"], repeated["attempts"], repeated["ended_at"]) == ("pending", 1, None)
    assert (busy.status_code, busy.json()["code"]) == (409, "callback.under-way")
    assert unknown.status_code == 404
    (event,) = stage.rows("SELECT actor FROM dagapp.asset_events WHERE action = 'callback_repeated'")
    assert event["actor"] == "local"


@pytest.mark.requirement("X3")
async def test_a_secret_is_shown_once_to_an_administrator(database, stage):
    async with api(database) as client:
        response = await client.post(f"{V1}/platforms/ddh/rotate-secret")
        first = await ok(client.post(f"{V1}/platforms/arcgis/rotate-secret", json={"overlap_seconds": 60}))
        second = await ok(client.post(f"{V1}/platforms/arcgis/rotate-secret", json={"overlap_seconds": 60}))
        unknown = await client.post(f"{V1}/platforms/unknown/rotate-secret")
        too_long = await client.post(f"{V1}/platforms/ddh/rotate-secret", json={"overlap_seconds": 1e9})
        texts = [
            (await client.get(f"{V1}/{path}")).text for path in ("platforms", "platforms/arcgis", "callbacks", "stats")
        ]

    assert response.headers["cache-control"] == "no-store"
    assert response.json()["secret"].startswith("whsec_")
    assert first["previous_until"] is None
    assert second["previous_until"] is not None
    assert first["secret"] != second["secret"]
    assert (unknown.status_code, too_long.status_code) == (404, 422)
    assert "whsec_" not in "".join(texts)
    history = stage.rows("SELECT * FROM dagapp.asset_events WHERE action = 'secret_rotated'")
    assert [row["platform_id"] for row in history] == ["ddh", "arcgis", "arcgis"]
    assert "whsec_" not in str(history)


@pytest.mark.requirement("X1")
def test_callbacks_are_for_operators_and_secrets_for_administrators():
    allowed = {
        route.operation_id: {scope for scope in Scope if may(Caller("x", frozenset({scope})), permission_of(route))}
        for route in callback_events.router.routes
    }

    assert allowed.pop("rotate_platform_secret") == {Scope.ADMIN}
    assert allowed.keys() == {"list_callbacks", "get_callback", "repeat_callback"}
    assert all(scopes == {Scope.OPERATOR, Scope.ADMIN} for scopes in allowed.values())


@pytest.mark.requirement("M3")
async def test_the_command_line_lists_shows_and_repeats_callbacks(database, stage, capsys):
    stage.record_callbacks("order-7")
    stage.record_callbacks("order-8")
    await end(database, "order-7", DeliveryAttempt(error="connection refused"), CallbackState.FAILED)
    callback_id = str(stage.callbacks()[0]["callback_id"])
    log.configure("error")
    async with served(app_of(database)) as server:

        async def dagmaster(*arguments: str) -> tuple[int, str]:
            code = await asyncio.to_thread(run, [*arguments, "--server", server.url])
            return code, capsys.readouterr().out

        listed = await dagmaster("callbacks", "ls", "--state", "failed", "--json")
        table = await dagmaster("callbacks", "ls")
        shown = await dagmaster("callbacks", "show", callback_id[:8])
        repeated = await dagmaster("callbacks", "repeat", callback_id)
        unknown = await dagmaster("callbacks", "show", str(uuid4()))
        wrong = await dagmaster("callbacks", "show", "x")

    assert [row["request_id"] for row in json.loads(listed[1])["callbacks"]] == ["order-7"]
    assert "order-7" in table[1]
    assert "order-8" in table[1]
    assert "connection refused" in shown[1]
    assert '"status": "approved"' in shown[1] or '"status":"approved"' in shown[1]
    assert repeated == (0, f"callback {callback_id} will be delivered again\n")
    assert stage.callbacks()[0]["state"] == "pending"
    assert (unknown[0], wrong[0]) == (4, 2)
