"""Polls of partners are fast: their statements are planned once."""

import pytest

from dagmaster.database import queries
from dagmaster.gateway.reads import GatewayReads
from tests.gateway.kit import gateway_dsn

pytestmark = pytest.mark.requirement("G3")

# Replaces the statement that reads a key, because that statement uses the same connection as the polls before it.
_PLANS = """
SELECT %(key_id)s::text AS key_id, generic_plans || ' planned once, ' || custom_plans || ' planned again' AS name,
       '{}'::text[] AS scopes, NULL AS platform_id, '' AS secret_hash, NULL AS previous_hash, false AS is_expired,
       false AS is_revoked
  FROM pg_prepared_statements
 WHERE position('FROM dagapp_gateway.requests' IN statement) > 0
   AND position('pg_prepared_statements' IN statement) = 0
"""


async def test_a_poll_does_not_plan_its_statement_again(database: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(queries.all_queries(), "gateway_key", _PLANS)
    async with GatewayReads(await gateway_dsn(database)) as reads:
        polled = [await reads.request(f"order-{number}", "ddh") for number in range(12)]
        plans = await reads.key("any")

    assert polled == [None] * 12
    assert plans is not None
    assert plans.name == "12 planned once, 0 planned again"
