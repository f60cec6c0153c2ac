"""The methods of the Python client about layers and direct commands, against the real API and a real database."""

import inspect

import pytest

from dagmaster.client import Conflict, InvalidRequest
from dagmaster.client.blocking import blocking, iterating
from dagmaster.client.json_layers import AsyncLayerRequests, LayerRequests
from dagmaster.client.layers import AsyncLayers, Layers
from tests.client.test_assets import platform

pytestmark = pytest.mark.requirement("A6", "O2")


async def test_metadata_is_changed_published_listed_and_withdrawn(catalog_database, tmp_path):
    async with platform(catalog_database, tmp_path) as (client, kit):
        await kit.publish("dem", clearance="public")
        fresh = await client.layer_metadata("dem")
        changes = {"title": "Heights", "keywords": ["alps"]}
        edited = await client.change_layer_metadata("dem", changes, etag=fresh.etag)
        with pytest.raises(Conflict) as stale:
            await client.change_layer_metadata("dem", {"title": "Late"}, etag=fresh.etag)
        published = await client.publish_metadata("dem", reason="checked")
        listed = [layer.title async for layer in client.layers(keyword="alps")]
        with pytest.raises(InvalidRequest) as not_configured:
            await client.publish_metadata("dem", is_external=True)
        withdrawn = await client.unpublish_metadata("dem")
        names = [command.name for command in await client.commands()]
        rebuilt = await client.run_command("asset.reindex", asset="dem")

    assert (fresh.etag, edited.etag, stale.value.code) == ("0", "1", "layer.changed")
    assert (published.is_changed, published.layer.is_published, listed) == (True, True, ["Heights"])
    assert not_configured.value.code == "external.not-configured"
    assert (withdrawn.is_changed, withdrawn.layer.is_published, withdrawn.layer.title) == (True, False, "Heights")
    assert "cache.invalidate" in names
    assert rebuilt["items"] == 1


@pytest.mark.parametrize(("asynchronous", "plain"), [(AsyncLayers, Layers), (AsyncLayerRequests, LayerRequests)])
def test_the_blocking_client_has_the_same_methods(asynchronous, plain):
    methods = {name for name, value in vars(asynchronous).items() if inspect.isfunction(value) and name[0] != "_"}

    assert {name for name, value in vars(plain).items() if isinstance(value, blocking | iterating)} == methods
