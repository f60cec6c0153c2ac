"""The pages of assets: states and extents in lists, the review queue, comparisons, provenance and requests."""

from itertools import chain

import pytest

from dagmaster.client import AsyncClient as DagmasterClient
from tests.api.serving import V1, api, app_of, ok, pages_of, served
from tests.api.test_callers import bearer, keys_of
from tests.operations.kit import opened

pytestmark = pytest.mark.requirement("O1")


async def test_assets_are_listed_with_their_extent_and_filtered_by_state(catalog_database, tmp_path):
    async with opened(catalog_database, tmp_path) as kit:
        await kit.publish("published")
        waiting = await kit.submit("waiting")
        await kit.process(waiting)
        broken = await kit.submit("broken")
        await kit.process(broken, status="failed")
        await kit.submit("new")
        async with api(catalog_database) as client:
            every = {asset["dataset_id"]: asset for asset in (await ok(client.get(f"{V1}/assets")))["items"]}

            async def named(**params):
                return {asset["dataset_id"] for asset in (await ok(client.get(f"{V1}/assets", params=params)))["items"]}

            by_state = {
                state: await named(state=state)
                for state in ("published", "needs_review", "failed", "processing", "rejected", "deleted", "approved")
            }
            both = await named(state="failed,needs_review")
            await ok(client.get(f"{V1}/assets", params={"state": "lost"}), 422)

    assert every["published"]["states"] == ["published"]
    assert every["published"]["bbox"] == [-180, -90, 180, 90]
    assert every["new"]["bbox"] is None
    assert by_state == {
        "published": {"published"},
        "needs_review": {"waiting"},
        "failed": {"broken"},
        "processing": {"new"},
        "rejected": set(),
        "deleted": set(),
        "approved": set(),
    }
    assert both == {"waiting", "broken"}


async def test_reviewers_see_what_needs_review_as_a_queue(catalog_database, tmp_path):
    async with opened(catalog_database, tmp_path) as kit:
        for name in ("a", "b", "c"):
            await kit.process(await kit.submit(name))
        await kit.publish("d")
        async with api(catalog_database) as client:
            first = await ok(client.get(f"{V1}/reviews", params={"limit": 2}))
            pages = await pages_of(client, f"{V1}/reviews", limit=2)
            other = await ok(client.get(f"{V1}/reviews", params={"platform_id": "other"}))
            asset = await ok(client.get(f"{V1}/assets/a"))
            bad = [
                (await client.get(f"{V1}/reviews", params={"after": after})).status_code
                for after in ("x", "x~y~1", "2026-01-01~y~1", "2026-01-01T00:00:00+00:00~y~z")
            ]

    assert (first["total"], first["is_exact"]) == (3, True)
    assert [review["dataset_id"] for review in chain(*pages)] == ["a", "b", "c"]
    assert first["items"][0]["etag"] == asset["etag"]
    assert first["items"][0]["bbox"] == [-180, -90, 180, 90]
    assert (other["items"], other["total"]) == ([], 0)
    assert bad == [400] * 4


async def test_versions_can_be_compared_and_show_their_provenance(catalog_database, tmp_path):
    async with opened(catalog_database, tmp_path) as kit:
        first = await kit.publish("dem", version_label="1")
        second = await kit.submit("dem", content=b"other", version_label="2", request_id="order-2")
        await kit.process(second, tiles=3)
        async with (
            keys_of(catalog_database, "viewer", "reviewer", "operator") as keys,
            api(catalog_database, auth_enabled=True) as client,
        ):
            base, pair = f"{V1}/assets/{first.asset_id}", {"from": 0, "to": 1}
            compared = await ok(client.get(f"{base}/compare", params=pair, headers=bearer(keys["reviewer"])))
            hidden = await client.get(f"{base}/compare", params=pair, headers=bearer(keys["viewer"]))
            unknown = await client.get(
                f"{base}/compare", params={**pair, "to_revision": 9}, headers=bearer(keys["reviewer"])
            )
            origin = await ok(client.get(f"{base}/versions/1/provenance", headers=bearer(keys["reviewer"])))
            requests = await ok(client.get(f"{base}/requests", headers=bearer(keys["operator"])))
            without = await ok(client.get(f"{base}/requests?version=1", headers=bearer(keys["reviewer"])))
            refused = [
                (await client.get(f"{base}/{path}", headers=bearer(keys["viewer"]))).status_code
                for path in ("requests", "versions/0/provenance")
            ]
            viewed = await ok(client.get(f"{V1}/assets", headers=bearer(keys["viewer"])))

    fields = {each["field"]: each for each in compared["differences"]}
    assert fields["item_count"] == {"field": "item_count", "before": 1, "after": 3, "delta": 2}
    assert fields["size_bytes"]["delta"] == 2000
    assert (compared["before"]["version_label"], compared["after"]["revision"]) == ("1", 1)
    assert (hidden.status_code, unknown.status_code) == (404, 404)
    assert origin["job_id"] == str(second.job_id)
    assert origin["workflow_id"] == second.workflow_id
    assert len(origin["definition_hash"]) == 64
    assert [request["version_ordinal"] for request in requests["items"]] == [1, 0]
    assert requests["items"][0]["request_id"] == "order-2"
    assert requests["items"][0]["callbacks"] == []
    assert [request["callbacks"] for request in without["items"]] == [None]
    assert refused == [403, 403]
    assert viewed["items"][0]["states"] == ["published"]
    assert viewed["items"][0]["bbox"] is not None


async def test_the_python_client_reads_what_the_pages_show(catalog_database, tmp_path):
    async with opened(catalog_database, tmp_path) as kit:
        first = await kit.publish("dem", version_label="1")
        await kit.process(await kit.submit("dem", content=b"other", version_label="2"), tiles=2)
        async with served(app_of(catalog_database)) as server, DagmasterClient(server.url) as client:
            reviews = [review.dataset_id async for review in client.reviews()]
            compared = await client.compare_versions("dem", 0, 1)
            origin = await client.provenance("dem", 0)
            requests = [request.version_ordinal async for request in client.asset_requests("dem")]
            assets = [asset.states async for asset in client.assets(state="published")]

    assert reviews == ["dem"]
    assert "item_count" in {difference.field for difference in compared.differences}
    assert origin.job_id == first.job_id
    assert requests == [1, 0]
    assert assets == [["needs_review", "published"]]
