"""The gateway on a database that refuses every write, as a standby does."""

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.api.serving import ok
from tests.gateway import kit as gateway_kit
from tests.gateway.kit import bearer, gateway, key_of
from tests.gateway.test_partners import kit, submission  # noqa: F401  a fixture
from tests.operations.kit import Kit

pytestmark = pytest.mark.requirement("G1", "G3")


async def test_a_gateway_whose_sessions_cannot_write_serves_status_and_assets(
    kit: Kit,  # noqa: F811
    tmp_path,
    monkeypatch: pytest.MonkeyPatch,
):
    writable = gateway_kit.gateway_dsn

    async def read_only(dsn: str) -> str:
        facts = conninfo_to_dict(await writable(dsn))
        options = f"{facts.pop('options', '') or ''} -c default_transaction_read_only=on".strip()
        return make_conninfo("", **facts, options=options)

    monkeypatch.setattr(gateway_kit, "gateway_dsn", read_only)
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    async with gateway(kit.dsn, tmp_path) as client:
        receipt = await ok(client.post("/api/platform/submit", json=submission(request_id="order-1"), headers=hub), 202)
        status = await ok(client.get(receipt["status_url"], headers=hub))
        asset = await ok(client.get(f"/api/assets/{receipt['asset_id']}", headers=hub))

    assert status["status"] == "received"
    assert asset["asset_id"] == receipt["asset_id"]
