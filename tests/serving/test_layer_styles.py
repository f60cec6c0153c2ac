"""Published layer metadata on the map: the style is the default, and title and attribution are shown."""

import asyncio
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from dagmaster.client.models.layers import LayerMetadataRequest
from dagmaster.database.assets.layer_store import LayerStore
from dagmaster.database.assets.rows import Decision
from dagmaster.operations.assets.metadata import edit_metadata, publish_metadata, withdraw_metadata
from tests.serving.assets import REVIEWER, Assets

pytestmark = pytest.mark.requirement("A6")

METADATA = {
    "title": "<b>Heights</b>",
    "attribution": "© Survey",
    "style": {"colormap_name": "plasma", "bidx": [1], "rescale": [[0, 50]]},
}


def publish(dsn: str, dataset: str, **metadata: object) -> None:
    async def act() -> None:
        async with LayerStore(dsn) as store:
            request = LayerMetadataRequest.model_validate(metadata)
            await edit_metadata(store, dataset, "raster", request=request, caller=REVIEWER)
            await publish_metadata(store, dataset, "raster", Decision("metadata.publish", "bob"))

    asyncio.run(act())


def withdraw(dsn: str, dataset: str) -> None:
    async def act() -> None:
        async with LayerStore(dsn) as store:
            await withdraw_metadata(store, dataset, "raster", Decision("metadata.unpublish", "bob"))

    asyncio.run(act())


@pytest.fixture(params=["dem", "tiled"])
def dataset(request: pytest.FixtureRequest, assets: Assets) -> Iterator[str]:
    yield request.param
    withdraw(assets.dsn, request.param)


def shown(client: TestClient, dataset: str) -> tuple[bytes, dict, dict]:
    preview = client.get(f"/tiles/{dataset}/preview.png")
    tilejson = client.get(f"/tiles/{dataset}/WebMercatorQuad/tilejson.json").json()
    collection = client.get(f"/stac/collections/{dataset}").json()
    assert preview.status_code == 200
    return preview.content, tilejson, collection


def test_the_style_is_used_until_withdrawn_and_tile_urls_change_with_it(client, dataset: str, assets: Assets):
    before = shown(client, dataset)

    publish(assets.dsn, dataset, **METADATA)
    styled = shown(client, dataset)
    withdraw(assets.dsn, dataset)
    after = shown(client, dataset)

    explicit = client.get(f"/tiles/{dataset}/preview.png?colormap_name=plasma&bidx=1&rescale=0,50")
    assert styled[0] != before[0]
    assert after[0] == before[0]
    assert styled[1]["tiles"] != before[1]["tiles"] == after[1]["tiles"]
    assert (styled[1]["name"], after[1]["name"]) == (METADATA["title"], before[1]["name"])
    assert "© Survey" in styled[1]["attribution"]
    assert styled[2]["title"] == METADATA["title"]
    assert styled[2]["renders"]["default"]["colormap_name"] == "plasma"
    assert explicit.content == styled[0]
    assert client.get(f"/tiles/{dataset}/map").status_code == 200


def test_html_in_titles_is_escaped_on_pages(client, assets: Assets):
    publish(assets.dsn, "dem", title="<script>alert(1)</script>", attribution='"><img src=x onerror=alert(1)>')
    try:
        page = client.get("/tiles/dem/map").text
    finally:
        withdraw(assets.dsn, "dem")

    assert "<script>alert(1)" not in page
    assert "<img src=x" not in page


def test_a_style_for_bands_that_the_data_does_not_have_is_ignored(client, dataset: str, assets: Assets):
    before = shown(client, dataset)

    publish(assets.dsn, dataset, style={"bidx": [7]})

    assert shown(client, dataset)[0] == before[0]
