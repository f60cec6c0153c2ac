"""Layers over the gateway, which reads them from views and forwards changes to the orchestrator."""

from pathlib import Path

import pytest

from tests.api.serving import V1, ok
from tests.gateway.kit import NO_SERVER, bearer, gateway, key_of
from tests.operations.kit import Kit, opened

pytestmark = pytest.mark.requirement("G2", "G3", "A6", "O2")

REFS = {"dataset_id": "floods", "resource_id": "r1", "version_id": "2024"}
PATH = "/api/assets/floods-r1/layers/raster/metadata"


@pytest.fixture
async def kit(catalog_database: str, tmp_path: Path):
    async with opened(catalog_database, tmp_path) as opened_kit:
        yield opened_kit


async def test_layers_are_read_by_their_own_platform_and_edited_by_reviewers(kit: Kit, tmp_path: Path):
    await kit.publish("floods", platform_id="ddh", platform_refs=REFS, blob="ddh/f.tif", clearance="ouo")
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    other = bearer(await key_of(kit.dsn, "other", "b2b", platform="geonode"))
    staff = bearer(await key_of(kit.dsn, "staff", "operator"))
    async with gateway(kit.dsn, tmp_path) as client:
        fresh = await client.get(PATH, headers=staff)
        match = {**staff, "If-Match": fresh.headers["etag"]}
        edited = await ok(client.put(PATH, json={"title": "Floods"}, headers=match))
        stale = await client.patch(PATH, json={"title": "Other"}, headers=match)
        refused = await client.put(PATH, json={"title": "Mine"}, headers=hub)
        own = await ok(client.get("/api/assets/floods-r1/layers", headers=hub))
        unseen = await client.get(PATH, headers=other)
        unknown = await client.get("/api/assets/floods-r1/layers/roads/metadata", headers=hub)
        hidden = await ok(client.get("/api/layers", headers=hub))
        command = f"/api/proxy/orchestrator{V1}/commands"
        listed = await ok(client.get(command, headers=staff))
        run = await ok(client.post(f"{command}/metadata.publish", json={"asset": "floods-r1"}, headers=staff))
        by_partner = await client.post(f"{command}/metadata.publish", json={"asset": "floods-r1"}, headers=hub)
        lists = [(await ok(client.get("/api/layers", headers=headers)))["items"] for headers in (hub, other, staff)]
        forbidden = await client.delete("/api/assets/floods-r1", headers=hub)
        deleted = await ok(client.delete("/api/assets/floods-r1/versions/0", headers=staff))
        layers_left = await ok(client.get("/api/layers", headers=staff))

    assert (fresh.headers["etag"], edited["etag"], stale.status_code) == ('"0"', "1", 412)
    assert (refused.status_code, unseen.status_code, unknown.status_code) == (403, 404, 404)
    assert [(row["layer"], row["title"], row["updated_by"]) for row in own["items"]] == [("raster", "Floods", None)]
    assert hidden["items"] == layers_left["items"] == []
    assert "metadata.publish" in [each["name"] for each in listed["items"]]
    assert run["is_changed"]
    assert by_partner.status_code == 403
    assert [[row["title"] for row in rows] for rows in lists] == [["Floods"], [], ["Floods"]]
    assert forbidden.status_code == 403
    assert deleted["versions"][0]["deleted_at"]


async def test_layers_are_read_while_no_orchestrator_runs(kit: Kit, tmp_path: Path):
    await kit.publish("dem", clearance="public")
    staff = bearer(await key_of(kit.dsn, "staff", "operator"))
    async with gateway(kit.dsn, tmp_path, orchestrators=0, dead=(NO_SERVER,)) as client:
        read = await ok(client.get("/api/assets/dem/layers/raster/metadata", headers=staff))
        changed = await client.put("/api/assets/dem/layers/raster/metadata", json={}, headers=staff)

    assert read["etag"] == "0"
    assert (changed.status_code, changed.json()["code"]) == (503, "gateway.no-orchestrator")
