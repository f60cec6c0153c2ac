"""Every direct command: inputs and outputs, repetition, permissions, audit records, and the time limit."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from dagmaster.access.caller import Caller, Scope
from dagmaster.access.permissions import ALLOWED
from dagmaster.client.models.commands import LayerCommand, LayerCommandResult
from dagmaster.commands.registry import CommandContext, all_commands, find_command, run_command
from dagmaster.errors import Conflict, NotFound, Unavailable
from dagmaster.settings import Settings
from tests.api.serving import V1, api, ok
from tests.commands.kit import Commands
from tests.gateway.kit import bearer, key_of
from tests.operations.kit import Kit

pytestmark = pytest.mark.requirement("O2", "X3")


async def _published(kit: Kit) -> None:
    await kit.publish("dem", tiles=2, clearance="public")


async def _waiting(kit: Kit) -> None:
    for dataset in ("dem", "slope"):
        await kit.process(await kit.submit(dataset))


async def _no_preparation(_kit: Kit) -> None:
    return


LAYER = {"asset": "dem"}
REVIEW = {
    "action": "approve",
    "clearance_level": "ouo",
    "entries": [{"asset": "dem", "version_ordinal": 0}, {"asset": "slope", "version_ordinal": 0}],
}
# For each command: its preparation, its inputs, a part of its result, and a part of the result of the second run.
Case = tuple[Callable[[Kit], Awaitable[None]], dict[str, Any], dict[str, Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "metadata.publish": (_published, LAYER, {"is_changed": True}, {"is_changed": False}),
    "metadata.unpublish": (_published, LAYER, {"is_changed": False}, {"is_changed": False}),
    "metadata.publish_external": (_published, LAYER, {"is_changed": True}, {"is_changed": False}),
    "asset.reindex": (_published, LAYER, {"versions": 1, "items": 2}, {"versions": 1, "items": 2}),
    "assets.review_many": (_waiting, REVIEW, {"changed": 2, "refused": 0}, {"changed": 0, "unchanged": 2}),
    "schema.migrate": (_no_preparation, {}, {"changes": []}, {"changes": []}),
    "cache.invalidate": (_no_preparation, {"wait_seconds": 0}, {"generation": 1}, {"generation": 2}),
}


def test_every_command_is_tested():
    assert set(CASES) == set(all_commands())


@pytest.mark.parametrize("name", CASES)
async def test_every_command_can_be_run_twice_and_is_recorded_each_time(with_external: Commands, name: str):
    prepare, inputs, first_result, second_result = CASES[name]
    await prepare(with_external.kit)

    first = await with_external.run(name, **inputs, reason="because")
    stac = await with_external.stac()
    second = await with_external.run(name, **inputs, reason="because")

    assert isinstance(first, all_commands()[name].result)
    assert first.model_dump().items() >= first_result.items()
    assert second.model_dump().items() >= second_result.items()
    assert await with_external.stac() == stac
    events = await with_external.events(name)
    assert [(event["actor"], event["reason"]) for event in events] == [("root", "because")] * 2


async def test_the_api_lists_and_runs_the_commands_that_a_caller_may_run(commands: Commands, tmp_path):
    await commands.kit.publish("dem")
    keys = {scope: bearer(await key_of(commands.kit.dsn, str(scope), scope)) for scope in ("reviewer", "operator")}
    keys["viewer"] = bearer(await key_of(commands.kit.dsn, "viewer", "viewer"))
    keys["b2b"] = bearer(await key_of(commands.kit.dsn, "b2b", "b2b", platform="ddh"))
    async with api(commands.kit.dsn, auth_enabled=True, storage_folder=tmp_path) as client:
        listed = {
            scope: {entry["name"] for entry in (await ok(client.get(f"{V1}/commands", headers=keys[scope])))["items"]}
            for scope in ("reviewer", "operator")
        }
        refused = [await client.get(f"{V1}/commands", headers=keys[scope]) for scope in ("viewer", "b2b")]
        responses = {
            (scope, name): await client.post(f"{V1}/commands/{name}", json=CASES[name][1], headers=keys[scope])
            for scope in keys
            for name in CASES
            if name != "metadata.publish_external"
        }

    for (scope, name), response in responses.items():
        is_allowed = all_commands()[name].permission in ALLOWED[Scope(scope)]
        assert (response.status_code == 200) == is_allowed, (scope, name, response.text)
        assert is_allowed or response.status_code == 403
    assert [response.status_code for response in refused] == [403, 403]
    for scope, names in listed.items():
        assert names == {n for n, command in all_commands().items() if command.permission in ALLOWED[Scope(scope)]}
    assert "schema.migrate" not in listed["operator"]
    assert "cache.invalidate" not in listed["reviewer"]


async def test_a_description_has_the_schema_of_the_inputs_for_a_form(commands: Commands, tmp_path):
    async with api(commands.kit.dsn, storage_folder=tmp_path) as client:
        listed = {entry["name"]: entry for entry in (await ok(client.get(f"{V1}/commands")))["items"]}

    publish = listed["metadata.publish"]
    assert publish["inputs"]["required"] == ["asset"]
    assert publish["inputs"]["properties"]["layer"]["default"] == "raster"
    assert publish["permission"] == "assets:review"
    assert all(entry["summary"].endswith(".") and entry["inputs"]["type"] == "object" for entry in listed.values())


BAD_REQUESTS: list[tuple[str, Any, int, str | None]] = [
    ("metadata.publish", {}, 400, "command.invalid-inputs"),
    ("metadata.publish", {"asset": "dem", "more": 1}, 400, "command.invalid-inputs"),
    ("metadata.publish", {"asset": "dem\u0000"}, 400, None),
    ("metadata.publish", {"asset": "'; DROP TABLE x; --"}, 404, "asset.not-found"),
    ("metadata.publish", {"asset": "dem", "layer": "../../etc"}, 404, None),
    ("metadata.publish", ["dem"], 422, None),
    ("cache.invalidate", {"wait_seconds": "NaN"}, 400, "command.invalid-inputs"),
    ("cache.invalidate", {"cache": "everything"}, 400, "command.invalid-inputs"),
    ("assets.review_many", {"action": "approve", "entries": []}, 400, "command.invalid-inputs"),
    ("nonsense", {}, 404, "command.not-found"),
    ("metadata.publish%2F..", {}, 404, None),
    ("__class__", {}, 404, "command.not-found"),
]


async def test_invalid_requests_are_refused_without_a_server_error(commands: Commands, tmp_path):
    await commands.kit.publish("dem")
    async with api(commands.kit.dsn, storage_folder=tmp_path) as client:
        for name, body, status, code in BAD_REQUESTS:
            response = await client.post(f"{V1}/commands/{name}", json=body)

            assert response.status_code == status, (name, body, response.text)
            assert code is None or response.json()["code"] == code


async def test_a_command_that_takes_too_long_is_ended_and_changes_nothing(commands: Commands):
    await commands.kit.publish("dem")
    before = await commands.catalog(), await commands.stac()
    command = find_command("metadata.publish")
    context = CommandContext(Settings(), commands.kit.dsn, commands.kit.store, Caller("root"), command.name)
    inputs = LayerCommand(asset="dem")

    async with commands.kit.store._connected() as blocking, blocking.transaction():
        await blocking.execute("SELECT FROM dagapp.geospatial_assets FOR UPDATE")
        with pytest.raises(Unavailable) as refused:
            await run_command(command, context, inputs, timeout_seconds=0.3)

    assert refused.value.code == "command.timeout"
    assert (await commands.catalog(), await commands.stac()) == before
    assert await commands.events("metadata.publish") == []
    assert (await commands.run("metadata.publish", asset="dem")).is_changed


async def test_the_time_limit_is_ten_seconds_and_is_reported_as_a_timeout(commands: Commands, tmp_path, monkeypatch):
    async def slow(_context: CommandContext, _request: LayerCommand) -> LayerCommandResult:
        await asyncio.sleep(60)
        raise AssertionError

    publish = find_command("metadata.publish")
    monkeypatch.setattr("dagmaster.api.commands.find_command", lambda _name: replace(publish, run=slow))
    defaults = {**run_command.__kwdefaults__}
    monkeypatch.setitem(run_command.__kwdefaults__, "timeout_seconds", 0.05)
    async with api(commands.kit.dsn, storage_folder=tmp_path) as client:
        response = await client.post(f"{V1}/commands/metadata.publish", json={"asset": "dem"})

    assert defaults == {"timeout_seconds": 10.0}
    assert (response.status_code, response.json()["code"]) == (504, "command.timeout")


async def test_a_review_of_many_versions_has_a_result_for_each_and_continues_after_a_refusal(commands: Commands):
    await commands.kit.process(await commands.kit.submit("dem"))
    await commands.kit.publish("done")
    await commands.kit.submit("busy")
    entries = [{"asset": name, "version_ordinal": 0} for name in ("dem", "done", "busy", "none")]
    entries.append({"asset": "dem", "version_ordinal": 7})

    result = await commands.run("assets.review_many", action="approve", clearance_level="ouo", entries=entries)

    assert [(entry.asset, entry.outcome, entry.code) for entry in result.results] == [
        ("dem", "changed", None),
        ("done", "unchanged", None),
        ("busy", "refused", "version.processing"),
        ("none", "refused", "asset.not-found"),
        ("dem", "refused", "version.not-found"),
    ]
    assert (result.changed, result.unchanged, result.refused) == (1, 1, 3)
    (event,) = await commands.events("assets.review_many")
    assert event["detail"] == {"action": "approve", "changed": 1, "unchanged": 1, "refused": 3, "not_tried": 0}
    assert [event["actor"] for event in await commands.events("approved")] == ["bob", "root"]


@pytest.mark.parametrize(
    ("inputs", "outcome"),
    [
        ({"action": "reject", "reason": "clouds"}, "refused"),
        ({"action": "unpublish"}, "changed"),
        ({"action": "clear", "clearance_level": "public"}, "changed"),
        ({"action": "clear", "clearance_level": "ouo"}, "unchanged"),
    ],
)
async def test_many_versions_can_also_be_rejected_unpublished_and_cleared(commands: Commands, inputs, outcome):
    await commands.kit.publish("dem")

    result = await commands.run("assets.review_many", **inputs, entries=[{"asset": "dem", "version_ordinal": 0}])

    assert result.results[0].outcome == outcome


async def test_entries_for_which_no_time_is_left_are_not_tried(commands: Commands, monkeypatch):
    monkeypatch.setattr("dagmaster.commands.assets._BEGUN_WITHIN_SECONDS", 0.0)
    await commands.kit.publish("dem")

    result = await commands.run(
        "assets.review_many", action="unpublish", entries=[{"asset": "dem", "version_ordinal": 0}]
    )

    assert (result.not_tried, result.results[0].outcome) == (1, "not_tried")
    assert (await commands.kit.store.asset("dem")).versions[0].is_served


async def test_the_catalogue_is_rebuilt_from_documents_without_a_file(commands: Commands):
    await commands.kit.publish("dem", tiles=3, version_label="2023")
    await commands.kit.publish("dem", clearance=None, version_label="2024", content=b"2024", tiles=2)
    await commands.edit(title="Heights")
    await commands.run("metadata.publish", asset="dem")
    before = await commands.stac()
    await commands.kit.execute("DELETE FROM pgstac.items WHERE id = 'dem-v1-t0'")
    await commands.kit.execute("UPDATE pgstac.items SET content = content || '{\"assets\": {}}'")
    await commands.kit.execute('UPDATE pgstac.collections SET content = content || \'{"title": "damaged"}\'')

    result = await commands.run("asset.reindex", asset="dem")

    assert (result.versions, result.items) == (1, 2)
    assert await commands.stac() == before


async def test_rebuilding_an_unpublished_asset_leaves_nothing_in_the_catalogue(commands: Commands):
    await commands.kit.process(await commands.kit.submit("dem"))

    result = await commands.run("asset.reindex", asset="dem")

    assert (result.versions, result.items) == (0, 0)
    assert await commands.kit.items() == {}


async def test_commands_on_unknown_or_unpublished_assets_are_refused(commands: Commands):
    with pytest.raises(NotFound):
        await commands.run("asset.reindex", asset="none")
    await commands.kit.process(await commands.kit.submit("dem"))
    with pytest.raises(Conflict) as refused:
        await commands.run("metadata.publish", asset="dem")
    assert refused.value.code == "layer.not-published"
