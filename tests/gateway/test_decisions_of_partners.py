"""Keys of a platform may decide on its assets if the platform allows it, over the gateway and over the API."""

import json
from pathlib import Path
from typing import Any

import pytest

from dagmaster.access.caller import Caller, Scope
from dagmaster.access.decision import may_decide
from dagmaster.errors import Conflict, NotAllowed, NotFound
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.platforms import set_platform
from dagmaster.operations.assets.reject import reject
from dagmaster.operations.assets.unpublish import unpublish
from tests.api.serving import V1, api, ok
from tests.gateway.kit import bearer, gateway, key_of
from tests.operations.kit import ADA, Kit, opened

pytestmark = pytest.mark.requirement("G1", "G3", "X1")

HUB = Caller("hub", frozenset({Scope.B2B}), "ddh")
NODE = Caller("node", frozenset({Scope.B2B}), "geonode")
REFS = {"dataset_id": "floods", "resource_id": "r1", "version_id": "2024"}


@pytest.fixture
async def kit(catalog_database: str, tmp_path: Path):
    async with opened(catalog_database, tmp_path) as opened_kit:
        yield opened_kit


async def asset_to_review(kit: Kit, **options: Any) -> str:
    """The id of an asset of ddh with a version to review."""
    given = {"platform_id": "ddh", "platform_refs": REFS, "blob": "ddh/floods.tif", **options}
    submitted = await kit.submit("floods", **given)
    await kit.process(submitted)
    return submitted.asset_id


async def allow(kit: Kit, value: bool = True) -> None:
    await set_platform(kit.store, "ddh", caller=ADA, b2b_may_approve=value)


@pytest.mark.parametrize(
    ("caller", "allowed", "expected"),
    [
        (HUB, True, True),
        (HUB, False, False),
        (NODE, True, False),
        (Caller("viewer", frozenset({Scope.VIEWER}), None), True, False),
        (Caller("odd", frozenset({Scope.VIEWER}), "ddh"), True, False),
        (Caller("staff", frozenset({Scope.REVIEWER})), False, True),
        (Caller("both", frozenset({Scope.B2B, Scope.OPERATOR}), "geonode"), False, True),
    ],
)
def test_only_reviewers_and_allowed_keys_of_its_platform_may_decide_on_an_asset(
    caller: Caller, allowed: bool, expected: bool
):
    assert may_decide(caller, "ddh", b2b_may_approve=allowed) is expected


async def test_by_default_keys_of_a_platform_may_not_decide(kit: Kit):
    await asset_to_review(kit)
    platform = await kit.store.platform("ddh")

    for act in (approve, reject, unpublish):
        with pytest.raises(NotAllowed) as refused:
            await act(kit.store, "floods-r1", 0, caller=HUB, reason="because")
        assert refused.value.code == "platform.may-not-approve"
        assert "--b2b-may-approve" in (refused.value.hint or "")
    assert platform.b2b_may_approve is False


async def test_the_asset_does_not_exist_for_a_key_of_another_platform(kit: Kit):
    await asset_to_review(kit)
    await allow(kit)

    for if_match in (None, '"1"', "nonsense"):
        with pytest.raises(NotFound) as refused:
            await approve(kit.store, "floods-r1", 0, caller=NODE, if_match=if_match)
        assert refused.value.code == "asset.not-found"
        assert "events" not in refused.value.facts


async def test_a_key_that_may_decide_may_not_approve_its_own_submission_if_a_second_person_is_required(kit: Kit):
    asset_id = await asset_to_review(kit, caller=HUB)
    await allow(kit)

    with pytest.raises(Conflict) as refused:
        await approve(kit.store, asset_id, 0, caller=HUB, needs_second_person=True)

    assert refused.value.code == "approval.own-submission"


async def test_the_permission_to_decide_ends_when_the_platform_is_changed(kit: Kit):
    await asset_to_review(kit)
    await allow(kit)
    await reject(kit.store, "floods-r1", 0, caller=HUB, reason="clouds")
    await allow(kit, False)

    with pytest.raises(NotAllowed):
        await reject(kit.store, "floods-r1", 0, caller=HUB, reason="clouds")
    (event, *_) = await kit.store.history((await kit.store.asset("floods-r1")).asset_id, limit=1)
    changes = await kit.store.audit(limit=20, action="platform_changed")
    assert (event.action, event.actor, event.reason) == ("rejected", "hub", "clouds")
    assert [entry.detail for entry in changes] == [{"b2b_may_approve": False}, {"b2b_may_approve": True}]


async def test_a_partner_approves_and_unpublishes_over_the_gateway_and_sees_no_internals(kit: Kit, tmp_path: Path):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    node = bearer(await key_of(kit.dsn, "node", "b2b", platform="geonode"))
    staff = bearer(await key_of(kit.dsn, "staff", "admin"))
    asset_id = await asset_to_review(kit, request_id="order-1")
    decision = {"request_id": "order-1", "clearance_level": "public"}
    async with gateway(kit.dsn, tmp_path) as client:
        forbidden = await client.post("/api/platform/approve", json=decision, headers=hub)
        change = {"json": {"b2b_may_approve": True}, "headers": staff}
        await ok(client.patch(f"/api/proxy/orchestrator{V1}/platforms/ddh", **change))
        other = await client.post("/api/platform/approve", json=decision, headers=node)
        node_response = await client.post(f"/api/assets/{asset_id}/versions/0/approve", json={}, headers=node)
        approved = await ok(client.post("/api/platform/approve", json=decision, headers=hub))
        withdrawn = await ok(client.post("/api/platform/unpublish", json={"request_id": "order-1"}, headers=hub))
        whole = await client.post(f"/api/assets/{asset_id}/versions/0/approve", json={}, headers=hub)
        cleared = await client.post(f"/api/assets/{asset_id}/clear", json={"clearance_level": "ouo"}, headers=hub)

    assert (forbidden.status_code, forbidden.json()["code"]) == (403, "platform.may-not-approve")
    assert (other.status_code, node_response.status_code, cleared.status_code) == (404, 404, 403)
    assert (approved["status"], withdrawn["status"]) == ("published", "unpublished")
    shown = whole.json()
    assert shown["versions"][0]["is_served"]
    assert (shown["versions"][0]["current_job_id"], shown["versions"][0]["reviewer"], shown["cleared_by"]) == (
        None,
    ) * 3


async def test_a_stale_etag_of_a_partner_is_refused_without_showing_the_events(kit: Kit, tmp_path: Path):
    key = await key_of(kit.dsn, "hub", "b2b", platform="ddh")
    await asset_to_review(kit)
    await allow(kit)
    async with api(kit.dsn, auth_enabled=True, storage_folder=tmp_path) as client:
        headers = {**bearer(key), "If-Match": '"1"'}
        stale = await client.post(f"{V1}/assets/floods-r1/versions/0/approve", json={}, headers=headers)

    assert (stale.status_code, stale.json()["code"]) == (412, "asset.changed")
    assert "job_id" not in json.dumps(stale.json())
    assert "ada" not in json.dumps(stale.json())
