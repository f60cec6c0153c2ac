"""Layer metadata is edited by users, published in STAC and the layer catalogue, and removed there with its asset."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from rio_tiler.colormap import cmap

from dagmaster.assets.states import Clearance, Exposure
from dagmaster.client.models.layers import LayerMetadataChange, LayerMetadataRequest, LayerStyle
from dagmaster.errors import Conflict, InvalidRequest, NotFound
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.clear import clear
from dagmaster.operations.assets.delete import delete
from dagmaster.operations.assets.expose import expose
from dagmaster.operations.assets.metadata import edit_metadata
from dagmaster.operations.assets.unpublish import unpublish
from dagmaster.serving.rendering import rendering_of
from dagmaster.stac.colormaps import COLORMAPS
from dagmaster.stac.layers import described, styled
from dagmaster.stac.validate import problems
from tests.api.serving import V1, api, ok
from tests.commands.kit import STYLE, Commands
from tests.gateway.kit import bearer, key_of
from tests.operations.kit import BOB, collection

pytestmark = pytest.mark.requirement("A6", "O2")

ALL_FIELDS = {
    "title": "Heights of the Alps",
    "description": "Measured by laser.\n\nIn metres.",
    "keywords": ["height", "alps"],
    "attribution": "© Survey of the Alps",
    "style": STYLE,
}
HOSTILE = "<script>alert(1)</script> {{7*7}} ${jndi:ldap://x} '; DROP TABLE dagapp.layer_metadata; --"
ANY_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Cs", "Co"]), min_size=1, max_size=60)


async def test_metadata_is_edited_with_optimistic_locking(commands: Commands):
    await commands.kit.submit("dem")

    first = await commands.edit(**ALL_FIELDS)
    same = await commands.edit(**ALL_FIELDS)
    change = LayerMetadataChange(title="Heights", keywords=None)
    changed = await edit_metadata(
        commands.kit.store, "dem", "raster", request=change, caller=BOB, if_match=f'"{first.etag}"'
    )
    with pytest.raises(Conflict) as stale:
        await edit_metadata(commands.kit.store, "dem", "raster", request=change, caller=BOB, if_match=first.etag)

    assert (first.etag, same.etag, changed.etag, first.updated_by) == ("1", "1", "2", "bob")
    assert (changed.title, changed.keywords, changed.attribution) == ("Heights", [], ALL_FIELDS["attribution"])
    assert (stale.value.code, stale.value.facts["etag"]) == ("layer.changed", "2")
    assert stale.value.facts["metadata"]["title"] == "Heights"
    events = await commands.events("metadata_edited")
    assert [event["detail"] for event in events] == [
        {"layer": "raster", "fields": sorted(ALL_FIELDS)},
        {"layer": "raster", "fields": ["keywords", "title"]},
    ]


async def test_a_put_removes_the_fields_that_it_leaves_out(commands: Commands):
    await commands.kit.submit("dem")
    await commands.edit(**ALL_FIELDS)

    replaced = await commands.edit(title="Only this")

    assert (replaced.title, replaced.description, replaced.keywords, replaced.style) == ("Only this", None, [], None)


async def test_publishing_changes_the_collection_and_the_catalogue_and_unpublishing_restores_both(commands: Commands):
    await commands.kit.publish("dem", tiles=2)
    before, empty = await commands.stac(), await commands.catalog()
    await commands.edit(**ALL_FIELDS)
    assert await commands.stac() == before

    published = await commands.run("metadata.publish", asset="dem", reason="final")

    (row,) = await commands.catalog()
    stored = await commands.kit.collection()
    assert {name: stored[name] for name in ("title", "description", "keywords")} == {
        name: ALL_FIELDS[name] for name in ("title", "description", "keywords")
    }
    assert stored["providers"] == [{"name": "© Survey of the Alps", "roles": ["producer", "licensor"]}]
    assert stored["renders"]["default"] == {"assets": ["mosaic"], **STYLE}
    assert (row["title"], row["attribution"], row["keywords"]) == tuple(
        ALL_FIELDS[name] for name in ("title", "attribution", "keywords")
    )
    assert (row["bbox"], row["clearance_state"], row["version_ordinal"], row["revision"]) == (
        [10.0, 46.0, 10.5, 46.5],
        "ouo",
        0,
        1,
    )
    assert row["style"] == stored["renders"]["default"]
    assert (published.layer.is_published, published.layer.is_changed) == (True, False)

    await commands.run("metadata.unpublish", asset="dem")

    assert await commands.stac() == before
    assert await commands.catalog() == empty == []
    assert (await commands.kit.store.layer(row["asset_id"], "raster")).title == ALL_FIELDS["title"]


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"title": HOSTILE, "description": HOSTILE, "keywords": [HOSTILE[:80]], "attribution": HOSTILE},
        {"style": {"colormap": {"0": "#000000", "1": "#ff000080"}, "resampling": "nearest"}},
        {"keywords": ["a", "a", "é", "🗺"]},
    ],
)
@pytest.mark.parametrize("versions", [1, 2])
async def test_publishing_and_unpublishing_metadata_restores_the_catalogue(
    commands: Commands, metadata: dict[str, Any], versions: int
):
    for number in range(versions):
        level = None if number else "ouo"
        label, content = str(2020 + number), str(number).encode()
        await commands.kit.publish("dem", tiles=1, clearance=level, version_label=label, content=content)
    await expose(commands.kit.store, "dem", Exposure.ALL_VERSIONS, caller=BOB)
    before = await commands.stac()
    await commands.edit(**metadata)

    await commands.run("metadata.publish", asset="dem")
    (row,) = await commands.catalog()
    await commands.run("metadata.unpublish", asset="dem")

    assert await commands.stac() == before
    assert await commands.catalog() == []
    assert row["title"] == metadata.get("title", f"Title of version {versions - 1}")
    assert row["version_ordinal"] == versions - 1


@settings(max_examples=60)
@given(title=ANY_TEXT, attribution=ANY_TEXT, keywords=st.lists(ANY_TEXT, max_size=4))
def test_any_text_is_stored_unchanged_and_changes_no_other_field(title: str, attribution: str, keywords: list[str]):
    known = collection("dem", 0, 1, is_tiled=True)
    layers = {"raster": {"title": title, "attribution": attribution, "keywords": keywords}}

    document = described(known, layers)

    assert document["title"] == title
    assert {**document, "title": known["title"], "keywords": None, "providers": None} == {
        **known,
        "keywords": None,
        "providers": None,
    }
    assert described(known, {}) == described(known, {"raster": {}}) == known == collection("dem", 0, 1, is_tiled=True)


@pytest.mark.parametrize("action", ["unpublish", "unpublish asset", "delete", "delete version", "uncleared"])
async def test_the_layer_catalogue_contains_no_layers_of_hidden_assets(commands: Commands, action: str):
    store = commands.kit.store
    for dataset in ("dem", "other"):
        await commands.kit.publish(dataset)
        await commands.edit(dataset, title="Heights")
        await commands.run("metadata.publish", asset=dataset)

    match action:
        case "unpublish":
            await unpublish(store, "dem", 0, caller=BOB)
        case "unpublish asset":
            await unpublish(store, "dem", caller=BOB)
        case "delete":
            await delete(store, "dem", caller=BOB)
        case "delete version":
            await delete(store, "dem", 0, caller=BOB)
        case _:
            await clear(store, "dem", Clearance.UNCLEARED, caller=BOB)

    assert [row["dataset_id"] for row in await commands.catalog()] == ["other"]
    assert "Heights" not in str(await commands.stac())


async def test_metadata_must_be_published_again_after_its_asset_was_unpublished(commands: Commands):
    await commands.kit.publish("dem")
    await commands.edit(title="Heights")
    await commands.run("metadata.publish", asset="dem")
    await unpublish(commands.kit.store, "dem", caller=BOB)

    await approve(commands.kit.store, "dem", 0, caller=BOB)

    assert await commands.catalog() == []
    assert (await commands.kit.collection())["title"] == "Title of version 0"
    assert (await commands.run("metadata.publish", asset="dem")).is_changed
    assert (await commands.kit.collection())["title"] == "Heights"


async def test_new_versions_and_revisions_keep_the_published_metadata_and_not_later_edits(commands: Commands):
    await commands.kit.publish("dem")
    await commands.edit(title="Heights")
    await commands.run("metadata.publish", asset="dem")
    await commands.edit(title="Not yet")
    revised = await commands.kit.submit("dem", content=b"better")
    await commands.kit.process(revised)
    await approve(commands.kit.store, "dem", 0, caller=BOB)
    (first,) = await commands.catalog()

    await commands.kit.publish("dem", clearance=None, version_label="2024", content=b"2024")

    (second,) = await commands.catalog()
    stored = await commands.kit.collection()
    assert (first["version_ordinal"], first["revision"]) == (0, 2)
    assert (second["version_ordinal"], second["revision"]) == (1, 1)
    assert second["bbox"] == [11.0, 46.0, 11.5, 46.5]
    assert stored["title"] == second["title"] == "Heights"
    assert stored["description"] == second["description"] == "revision 1"
    layer = await commands.kit.store.layer(first["asset_id"], "raster")
    assert (layer.title, layer.is_published, layer.is_changed) == ("Not yet", True, True)


async def test_the_clearance_of_a_layer_is_that_of_its_asset(commands: Commands):
    await commands.kit.publish("dem")
    await commands.run("metadata.publish", asset="dem")

    await clear(commands.kit.store, "dem", Clearance.PUBLIC, caller=BOB)
    public = await commands.catalog()
    await clear(commands.kit.store, "dem", Clearance.OUO, caller=BOB)

    assert [row["clearance_state"] for row in public] == ["public"]
    assert [row["clearance_state"] for row in await commands.catalog()] == ["ouo"]


async def test_a_deleted_asset_and_an_unknown_layer_are_refused(commands: Commands):
    await commands.kit.publish("dem")
    with pytest.raises(NotFound) as unknown:
        await edit_metadata(commands.kit.store, "dem", "roads", request=LayerMetadataRequest(), caller=BOB)
    await delete(commands.kit.store, "dem", caller=BOB)
    with pytest.raises(Conflict) as deleted:
        await commands.edit(title="Heights")

    assert (unknown.value.code, deleted.value.code) == ("layer.not-found", "asset.deleted")


@pytest.mark.parametrize(
    "fields",
    [
        {"title": ""},
        {"title": "   "},
        {"title": "x" * 201},
        {"title": "two\nlines"},
        {"title": "bell\x07"},
        {"title": "\u202eturned"},
        {"title": "nul\x00"},
        {"description": "x" * 10_001},
        {"keywords": ["x" * 81]},
        {"keywords": [str(number) for number in range(51)]},
        {"keywords": [""]},
        {"attribution": "x" * 501},
        {"licence": "mine"},
        {"style": {"colormap_name": "viridis", "colormap": {"1": "#ffffff"}}},
        {"style": {"colormap": {"one": "#ffffff"}}},
        {"style": {"colormap": {"1": "white"}}},
        {"style": {"colormap": {}}},
        {"style": {"colormap": {"1": "#ffffff"}, "rescale": [[0, 1]]}},
        {"style": {"rescale": [[1, 1]]}},
        {"style": {"rescale": [[0, float("inf")]]}},
        {"style": {"rescale": [[float("nan"), 1]]}},
        {"style": {"rescale": [[-1.7e308, 1.7e308]]}},
        {"style": {"bidx": [0]}},
        {"style": {"bidx": [1, 2], "colormap_name": "viridis"}},
        {"style": {"bidx": [1, 2, 3], "rescale": [[0, 1], [0, 1]]}},
        {"style": {"resampling": "magic"}},
        {"style": {"expression": "b1*2"}},
    ],
)
def test_invalid_metadata_is_refused(fields: dict[str, Any]):
    with pytest.raises(ValidationError):
        LayerMetadataRequest.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"description": "see https://x.blob.core.windows.net/a?sv=1&sig=abc"}, "metadata.not-public"),
        ({"attribution": "postgresql://user:secret@db/x"}, "metadata.not-public"),
        ({"keywords": ["/vsiaz/bronze/x.tif"]}, "metadata.not-public"),
        ({"style": {"colormap_name": "viridiss"}}, "style.no-colormap"),
    ],
)
async def test_metadata_with_secrets_or_an_unknown_colormap_is_refused_when_it_is_written(
    commands: Commands, fields, code
):
    await commands.kit.submit("dem")

    with pytest.raises(InvalidRequest) as refused:
        await commands.edit(**fields)

    assert refused.value.code == code
    assert "secret" not in str(refused.value)


def test_the_names_of_colour_maps_are_those_of_the_map_server():
    assert set(cmap.list()) == COLORMAPS


RENDERS = {"default": {"assets": ["data"], "bidx": [4, 3, 2], "rescale": [[0, 9], [0, 8], [0, 7]], "nodata": 0}}


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ({"title": "Heat"}, {**RENDERS["default"], "title": "Heat"}),
        (
            {"colormap_name": "viridis"},
            {"assets": ["data"], "bidx": [4], "rescale": [[0, 9]], "nodata": 0, "colormap_name": "viridis"},
        ),
        (
            {"colormap": {"1": "#ffffff"}, "bidx": [1]},
            {"assets": ["data"], "bidx": [1], "nodata": 0, "colormap": {"1": "#ffffff"}},
        ),
        ({"bidx": [1, 2, 3]}, {"assets": ["data"], "bidx": [1, 2, 3], "nodata": 0}),
        ({"bidx": [9]}, RENDERS["default"]),  # the data has four bands
    ],
)
def test_a_style_replaces_contradicting_options_and_is_ignored_if_the_bands_do_not_match(style, expected):
    LayerStyle.model_validate(style)

    renders = styled(RENDERS, style, 4)

    assert renders["default"] == expected
    assert rendering_of({"renders": renders}, {}).error is None


def test_a_collection_with_layer_metadata_is_valid_stac():
    known = collection("dem", 0, 1, is_tiled=True)
    before = {str(each) for each in problems(known)}

    after = {str(each) for each in problems(described(known, {"raster": ALL_FIELDS}))}

    assert after <= before


async def test_metadata_can_be_read_and_changed_over_the_api_by_callers_with_permission(commands: Commands, tmp_path):
    await commands.kit.publish("dem", clearance="ouo")
    dsn = commands.kit.dsn
    reviewer = bearer(await key_of(dsn, "reviewer", "reviewer"))
    viewer = bearer(await key_of(dsn, "viewer", "viewer"))
    partner = bearer(await key_of(dsn, "partner", "b2b", platform="ddh"))
    own = bearer(await key_of(dsn, "own", "b2b", platform="local"))
    path = f"{V1}/assets/dem/layers/raster/metadata"
    async with api(dsn, auth_enabled=True, storage_folder=tmp_path) as client:
        fresh = await client.get(path, headers=reviewer)
        put = await client.put(path, json=ALL_FIELDS, headers={**reviewer, "If-Match": fresh.headers["etag"]})
        stale = await client.put(path, json={}, headers={**reviewer, "If-Match": fresh.headers["etag"]})
        patched = await ok(client.patch(path, json={"description": None}, headers=reviewer))
        bad = await client.put(path, json={"title": "x" * 300}, headers=reviewer)
        forbidden = [
            await client.put(path, json={"title": "mine"}, headers=headers) for headers in (viewer, partner, own, {})
        ]
        unseen = [await client.get(path, headers=headers) for headers in (viewer, partner)]
        owned = await ok(client.get(path, headers=own))
        hidden = await ok(client.get(f"{V1}/layers", headers=viewer))
        await ok(client.post(f"{V1}/commands/metadata.publish", json={"asset": "dem"}, headers=reviewer))
        listed = await ok(client.get(f"{V1}/layers", headers=viewer))
        by_keyword = await ok(client.get(f"{V1}/layers?keyword=none", headers=viewer))
        outside = await ok(client.get(f"{V1}/layers", headers=partner))
        layers = await ok(client.get(f"{V1}/assets/dem/layers", headers=reviewer))
        unknown = await client.get(f"{V1}/assets/dem/layers/roads/metadata", headers=reviewer)

    assert (fresh.headers["etag"], put.headers["etag"], put.status_code) == ('"0"', '"1"', 200)
    assert (stale.status_code, stale.json()["code"]) == (412, "layer.changed")
    assert (patched["description"], patched["title"]) == (None, ALL_FIELDS["title"])
    assert bad.status_code == 422
    assert [response.status_code for response in forbidden] == [403, 403, 403, 401]
    assert [response.status_code for response in unseen] == [404, 404]
    assert (owned["title"], owned["updated_by"]) == (ALL_FIELDS["title"], None)
    assert hidden["items"] == by_keyword["items"] == outside["items"] == []
    assert [(row["dataset_id"], row["title"]) for row in listed["items"]] == [("dem", ALL_FIELDS["title"])]
    assert "metadata" not in listed["items"][0]
    assert "published_by" not in listed["items"][0]
    assert [(layer["layer"], layer["is_published"]) for layer in layers["items"]] == [("raster", True)]
    assert (unknown.status_code, unknown.json()["code"]) == (404, "layer.not-found")
