"""Tiles, TileJSON, values, previews and statistics of a dataset."""

import itertools
import json

import numpy as np
import pytest
import rasterio
from morecantile import tms
from rasterio.env import get_gdal_config
from rio_tiler.models import ImageData
from titiler.core.resources.enums import ImageType
from titiler.core.utils import render_image

from dagmaster.serving.grids import grids_named
from dagmaster.serving.readers import GDAL_ENVIRONMENT
from dagmaster.serving.tiles import render_tile, router
from dagmaster.storage.location import Edition, Location, Zone
from tests.serving.conftest import BOX
from tests.serving.data import decoded, rounded
from tests.traces import Collector, facts

pytestmark = pytest.mark.requirement("C2")

GRID = tms.get("WebMercatorQuad")


def tile_at(lon, lat, zoom):
    tile = GRID.tile(lon, lat, zoom)
    return f"tiles/WebMercatorQuad/{zoom}/{tile.x}/{tile.y}"


INSIDE = tile_at(10.5, 50.5, 11)


def test_a_constant_cog_gives_tiles_of_its_value(client):
    picture = decoded(client.get(f"/tiles/plain/{INSIDE}.png").content)

    assert picture.shape == (2, 256, 256)
    assert (picture[0] == 100).all()
    assert (picture[1] == 255).all()


def test_pixels_outside_the_data_are_transparent(client):
    picture = decoded(client.get(f"/tiles/plain/{tile_at(10.01, 50.01, 8)}.png").content)

    assert set(np.unique(picture[1])) == {0, 255}
    assert (picture[0][picture[1] == 255] == 100).all()


@pytest.mark.parametrize(("ending", "kind"), [(".png", "png"), (".jpg", "jpg"), (".webp", "webp"), ("", "jpeg")])
def test_each_image_format_is_served(client, ending, kind):
    response = client.get(f"/tiles/plain/{INSIDE}{ending}")

    assert response.headers["content-type"] == f"image/{kind}"
    assert abs(int(decoded(response.content)[0].mean()) - 100) <= 1


@pytest.mark.requirement("M1")
def test_the_trace_of_a_tile_has_spans_for_read_render_and_encode(client):
    with Collector.running() as collector:
        client.get(f"/tiles/dem/{INSIDE}.png")

    (request,) = collector.named("GET")
    steps = [collector.named(f"{step} tile") for step in ("read", "render", "encode")]
    assert [len(spans) for spans in steps] == [1, 1, 1]
    assert {span.parent_span_id for (span,) in steps} == {request.span_id}
    assert facts(steps[2][0]) == {"format": "png"}


def test_the_block_cache_of_gdal_has_128_mb(client):
    """When the limit was in bytes instead of megabytes, a preview read each block again for each of its rows."""
    with rasterio.Env(**GDAL_ENVIRONMENT):
        assert get_gdal_config("GDAL_CACHEMAX") == 128 * 2**20


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("plain/preview.png?nodata=nan", "tiles.bad-parameter"),
        ("plain/preview.png?nodata=1e300", "tiles.bad-parameter"),
        ("scene/preview.png?colormap_name=viridis", "tiles.no-picture"),
        ("scene/preview.jpg?bidx=1&bidx=2", "tiles.no-picture"),
    ],
)
def test_a_request_that_the_data_does_not_support_is_a_client_error(client, path, code):
    response = client.get(f"/tiles/{path}")

    assert (response.status_code, response.json()["code"]) == (400, code)


def test_a_tile_has_the_requested_size(client):
    assert decoded(client.get(f"/tiles/plain/{INSIDE}.png?tilesize=512").content).shape[1:] == (512, 512)


def test_heights_are_shown_with_the_value_range_and_colours_of_the_catalogue(client):
    """This needs no parameter; without it, a float32 raster would be black."""
    bare = decoded(client.get(f"/tiles/dem/{tile_at(10.5, 50.5, 8)}.png").content)
    styled = decoded(
        client.get(f"/tiles/dem/{tile_at(10.5, 50.5, 8)}.png?rescale=0,2000&colormap_name=terrain").content
    )
    grey = decoded(client.get(f"/tiles/dem/{tile_at(10.5, 50.5, 8)}.png?colormap_name=gray").content)

    assert (bare == styled).all()
    assert len(np.unique(bare[0])) > 50
    assert not (grey == bare).all()


def test_nodata_is_transparent(client):
    picture = decoded(client.get(f"/tiles/dem/{tile_at(10.03, 50.97, 14)}.png").content)

    assert (picture[-1] == 0).all()


def test_bands_of_16_bits_are_shown_with_the_render_of_the_catalogue(client):
    picture = decoded(client.get(f"/tiles/scene/{INSIDE}.png").content)

    assert picture.dtype == np.uint8
    assert [int(band[0, 0]) for band in picture] == [63, 127, 191, 255]


def test_other_selected_bands_are_rescaled_by_their_own_statistics(client):
    picture = decoded(client.get(f"/tiles/scene/{INSIDE}.png?bidx=4&bidx=2&bidx=1").content)

    assert [int(band[0, 0]) for band in picture[:3]] == [255, 127, 63]


@pytest.mark.parametrize(
    ("lon", "lat", "value"), [(10.2, 50.8, 10), (10.8, 50.8, 20), (10.2, 50.2, 30), (10.8, 50.2, 40)]
)
def test_a_mosaic_shows_each_of_its_cogs(client, lon, lat, value):
    picture = decoded(client.get(f"/tiles/tiled/{tile_at(lon, lat, 10)}.png").content)
    point = client.get(f"/tiles/tiled/point/{lon},{lat}").json()

    assert value in np.unique(picture[0])
    assert point["values"] == [value]
    assert "tif" not in json.dumps(point)


def test_a_tile_over_several_cogs_shows_all_of_them(client):
    picture = decoded(client.get(f"/tiles/tiled/{tile_at(10.5, 50.5, 6)}.png").content)

    assert set(np.unique(picture[0][picture[1] == 255])) == {10, 20, 30, 40}


def test_a_mosaic_caches_the_extents_of_its_cogs(client, app):
    """The second tile opens only the COGs that it touches."""
    for _ in range(2):
        tile = client.get(f"/tiles/tiled/{tile_at(10.2, 50.8, 10)}.png")

    location = Location(Zone.SILVER, "silver", Edition("tiled").mosaic())
    mosaic = app.state.services.mosaics.load(location, tile.headers["etag"].strip('"'))
    assert all(10 <= box[0] < box[2] <= 11 for box in mosaic.extents.values())
    assert len(mosaic.all_assets()) == 4


@pytest.mark.parametrize(("dataset", "zooms"), [("plain", (8, 9)), ("tiled", (6, 10))])
def test_tilejson_has_bounds_zoom_levels_and_urls_of_the_revision(client, dataset, zooms):
    tilejson = client.get(f"/tiles/{dataset}/WebMercatorQuad/tilejson.json").json()

    assert tilejson["tilejson"] == "3.0.0"
    assert tilejson["scheme"] == "xyz"
    assert rounded(tilejson["bounds"]) == list(BOX)
    assert (tilejson["minzoom"], tilejson["maxzoom"]) == zooms
    assert rounded(tilejson["center"]) == [10.5, 50.5, zooms[0]]
    (address,) = tilejson["tiles"]
    assert address.startswith(f"http://localhost:8003/tiles/{dataset}/tiles/WebMercatorQuad/{{z}}/{{x}}/{{y}}?")
    assert "version=0&rev=1-" in address
    assert client.get(address.format(**GRID.tile(10.5, 50.5, 9)._asdict())).status_code == 200


def test_tilejson_passes_the_style_to_its_tiles(client):
    query = "rescale=0,10&colormap_name=viridis&tilesize=256&tile_format=png"
    (address,) = client.get(f"/tiles/dem/WebMercatorQuad/tilejson.json?{query}").json()["tiles"]

    assert "{y}.png?rescale=0,10&colormap_name=viridis&tilesize=256&version=1&rev=1-" in address


def test_the_attribution_is_escaped_in_the_page(client):
    tilejson = client.get("/tiles/plain/WebMercatorQuad/tilejson.json").json()

    assert tilejson["attribution"] == "Surveyors &lt;i&gt;&amp;&lt;/i&gt; Co · CC-BY-4.0"


def test_values_at_a_point_are_served(client):
    dem = client.get("/tiles/dem/point/10.5,50.5?version=0").json()
    empty = client.get("/tiles/dem/point/10.01,50.99?version=0").json()
    scene = client.get("/tiles/scene/point/10.5,50.5").json()

    assert dem["values"][0] == pytest.approx(1000, abs=5)
    assert empty["values"] == [None]
    assert scene["values"] == [1000, 2000, 3000, 4000]


def test_statistics_of_all_bands_are_served(client):
    scene = client.get("/tiles/scene/statistics").json()
    tiled = client.get("/tiles/tiled/statistics?p=50&histogram_bins=4").json()

    assert [band["mean"] for band in scene.values()] == [1000, 2000, 3000, 4000]
    assert (tiled["b1"]["min"], tiled["b1"]["max"], tiled["b1"]["mean"]) == (10, 40, 25)
    assert tiled["b1"]["percentile_50"] in (20, 25, 30)
    assert len(tiled["b1"]["histogram"][0]) == 4


@pytest.mark.parametrize("dataset", ["plain", "dem", "scene", "tiled"])
def test_preview_and_info_are_served(client, dataset):
    picture = decoded(client.get(f"/tiles/{dataset}/preview.png?max_size=128").content)
    info = client.get(f"/tiles/{dataset}/info").json()

    assert max(picture.shape[1:]) == 128
    assert rounded(info["bounds"]) == list(BOX)
    assert "/" not in json.dumps({**info, "crs": None})


def test_only_tiles_tilejson_and_the_map_page_are_not_served_by_titiler():
    routes = router(grids_named([])).routes
    own = {route.path for route in routes if not route.endpoint.__module__.startswith("titiler.")}

    tiles = "/tiles/{tileMatrixSetId}/{z}/{x}/{y}"
    pages = {"/map", "/WebMercatorQuad/map.html"}
    assert own == {tiles, f"{tiles}.{{format}}", "/{tileMatrixSetId}/tilejson.json"} | pages


@pytest.mark.parametrize("path", ["validate", "info", "map", "preview.png"])
def test_datasets_can_only_be_read(client, path):
    assert client.post(f"/tiles/plain/{path}", json={}).status_code in (404, 405)


def test_points_and_statistics_have_the_values_of_all_bands(client):
    """The render of the catalogue selects three of the four bands, and rescales them."""
    scene = client.get("/tiles/scene/statistics?max_size=100&p=5&histogram_bins=3").json()
    point = client.get("/tiles/scene/point/10.5,50.5?nodata=1000").json()

    assert list(scene) == ["b1", "b2", "b3", "b4"]
    assert scene["b4"]["percentile_5"] == 4000
    assert scene["b4"]["count"] == 100 * 100
    assert point["values"] == [1000, 2000, 3000, 4000]


def test_a_preview_of_a_mosaic_shows_all_of_it(client):
    picture = decoded(client.get("/tiles/tiled/preview.png?max_size=100").content)

    assert [picture[0][y, x] for y, x in ((20, 15), (20, 50), (80, 15), (80, 50))] == [10, 20, 30, 40]


@pytest.mark.parametrize("dataset", ["plain", "tiled"])
def test_a_tile_outside_the_data_is_not_found(client, dataset):
    tile = client.get(f"/tiles/{dataset}/{tile_at(40, 0, 9)}.png")
    point = client.get(f"/tiles/{dataset}/point/40,0")

    assert (tile.status_code, tile.json()["code"]) == (404, "tiles.outside")
    assert (point.status_code, point.json()["code"]) == (404, "tiles.outside")


@pytest.mark.parametrize("dataset", ["plain", "tiled"])
@pytest.mark.parametrize("zoom", [11, 18])
def test_a_map_can_be_zoomed_beyond_the_resolution_of_the_data(client, dataset, zoom):
    response = client.get(f"/tiles/{dataset}/{tile_at(10.75, 50.75, zoom)}.png")
    picture = decoded(response.content)

    assert response.status_code == 200
    assert np.unique(picture[0]) == [100 if dataset == "plain" else 20]
    assert (picture[-1] == 255).all()


def test_a_mosaic_refuses_zoom_levels_below_its_minzoom(client):
    response = client.get(f"/tiles/tiled/{tile_at(10.5, 50.5, 5)}.png")

    assert (response.status_code, response.json()["code"]) == (404, "tiles.outside-zooms")


@pytest.mark.parametrize("tile", ["30/1/1", "3/8/0", "3/0/8", "3/-1/0"])
def test_a_tile_outside_the_grid_is_refused(client, tile):
    assert client.get(f"/tiles/plain/tiles/WebMercatorQuad/{tile}.png").status_code == 404


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/tiles/unknown/info", 404, "asset.not-found"),
        ("/tiles/plain/info?version=7", 404, "version.not-found"),
        ("/tiles/dem/info?version=1&rev=2", 404, "version.replaced"),
        ("/tiles/plain/info?version=next", 400, "tiles.bad-parameter"),
        (f"/tiles/plain/{INSIDE}.png?bidx=0", 400, "tiles.no-band"),
        ("/tiles/plain/statistics?bidx=3", 400, "tiles.no-band"),
        ("/tiles/tiled/point/10.2,50.2?bidx=3", 400, "tiles.no-band"),
        (f"/tiles/plain/{INSIDE}.png?bidx=2", 400, "tiles.no-band"),
        (f"/tiles/plain/{INSIDE}.png?colormap_name=nonsense", 400, "tiles.no-colormap"),
        (f"/tiles/plain/{INSIDE}.png?rescale=1,1", 400, "tiles.bad-parameter"),
        (f"/tiles/plain/{INSIDE}.tif", 400, "tiles.no-format"),
        (f"/tiles/plain/{INSIDE}.npy", 400, "tiles.no-format"),
        ("/tiles/plain/tiles/Nonsense/3/4/1", 422, "request.invalid"),
        ("/tiles/plain/point/200,0", 422, "request.invalid"),
        ("/tiles/plain/point/nan,0", 422, "request.invalid"),
    ],
)
def test_errors_are_problems_with_a_code(client, path, status, code):
    response = client.get(path)

    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["code"] == code
    assert response.json()["request_id"] == response.headers["x-request-id"]


@pytest.mark.parametrize(
    "parameter",
    [
        "expression=__import__('os')",
        "algorithm=hillshade",
        "color_formula=gamma+r+2",
        "coord_crs=EPSG:3857",
        "dst_crs=%2Bproj%3Dlongc",
        "tilesize=100000",
        "tilesize=1",
        "buffer=1000",
        "padding=9999",
        "max_size=99999",
        "width=100000",
        "url=http://127.0.0.1/x.tif",
        "assets=data",
        "histogram_bins=99999",
        "bidx=1,2",
        "rescale=0,inf",
    ],
)
@pytest.mark.parametrize("route", [f"{INSIDE}.png", "preview.png", "statistics"])
def test_parameters_with_code_or_without_a_limit_are_refused(client, route, parameter):
    response = client.get(f"/tiles/plain/{route}?{parameter}")

    assert response.status_code == 400
    assert response.json()["code"] in {
        "tiles.no-parameter",
        "tiles.bad-parameter",
        "tiles.bad-expression",
        "tiles.no-colormap",
    }


@pytest.mark.parametrize(
    "path", ["preview/9000x9000.png", "preview/0x10.png", "preview.png?width=9000", "statistics?max_size=4000"]
)
def test_the_size_of_images_is_limited(client, path):
    assert client.get(f"/tiles/plain/{path}").status_code in (400, 422)


def test_a_colormap_is_served_as_a_picture(client):
    picture = decoded(client.get("/colormaps/viridis.png").content)

    assert picture.shape == (4, 1, 256)
    assert picture[:3, 0, 0].tolist() == [68, 1, 84]
    assert client.get("/colormaps/nonsense.png").status_code == 404


def test_a_map_across_the_antimeridian_opens_on_the_data(client):
    tilejson = client.get("/tiles/across/WebMercatorQuad/tilejson.json").json()

    assert tilejson["bounds"] == [-180, 0, 180, 2]
    assert tilejson["center"] == [180, 1, 4]
    assert tilejson["dagmaster"]["bbox"] == [178, 0, -178, 2]


def test_a_preview_across_the_antimeridian_shows_both_sides(client):
    picture = decoded(client.get("/tiles/across/preview.png?max_size=100").content)

    assert picture.shape[1:] == (50, 100)
    assert (picture[0][25, 20], picture[0][25, 80]) == (10, 20)
    assert (picture[1] == 255).all()


@pytest.mark.parametrize(
    "path", [f"{INSIDE}.png", INSIDE, "preview.png", "WebMercatorQuad/tilejson.json", "map", f"{tile_at(40, 0, 9)}.png"]
)
def test_head_responds_like_get_without_a_body(client, path):
    got, head = client.get(f"/tiles/plain/{path}"), client.head(f"/tiles/plain/{path}")

    assert head.status_code == got.status_code
    assert head.content == b""
    for name in ("content-type", "content-length", "etag", "cache-control"):
        assert head.headers.get(name) == got.headers.get(name), name


@pytest.mark.parametrize(("version", "value", "west"), [("0", 10, 10.0), ("1", 30, 11.0), ("latest", 30, 11.0)])
def test_every_tiled_version_is_served_from_its_own_mosaic(client, version, value, west):
    tilejson = client.get(f"/tiles/grown/WebMercatorQuad/tilejson.json?version={version}").json()
    tile = GRID.tile(west + 0.5, 50.5, 8)
    address = tilejson["tiles"][0].format(z=8, x=tile.x, y=tile.y)
    picture = decoded(client.get(address, headers={"accept": "image/png"}).content)

    assert tilejson["bounds"] == [west, 50.0, west + 1, 51.0]
    assert tilejson["dagmaster"]["rescale"] == [[0.0, 2.0 * value]], "each version has its own render"
    assert client.get(f"/tiles/grown/point/{west + 0.5},50.5?version={version}").json()["values"] == [value]
    assert abs(int(picture[0, 256, 256]) - 127) <= 1
    assert client.get(f"/tiles/grown/map?version={version}").status_code == 200


@pytest.mark.parametrize("dataset", ["plain", "tiled"])
def test_a_preview_has_the_proportions_of_the_area_on_the_ground(client, dataset):
    """A degree at 50.5° north is 0.636 times as wide as it is high."""
    _, height, width = decoded(client.get(f"/tiles/{dataset}/preview.png?max_size=300").content).shape
    _, exact_height, exact_width = decoded(client.get(f"/tiles/{dataset}/preview/200x100.png").content).shape

    assert (height, width) == (300, 191)
    assert (exact_height, exact_width) == (100, 200)


@pytest.mark.parametrize(
    ("kind", "add_mask", "dtype", "is_masked", "rescale"),
    itertools.product(
        [None, ImageType.jpg, ImageType.png, ImageType.webp],
        [True, False],
        ["uint8", "uint16"],
        [True, False],
        [None, [(0, 4000)]],
    ),
)
def test_images_equal_those_of_titiler(kind, add_mask, dtype, is_masked, rescale):
    def image():
        pixels = np.random.default_rng(1).integers(1, 255, (3, 32, 32)).astype(dtype)
        mask = np.zeros(pixels.shape, bool)
        mask[:, :8] = is_masked
        return ImageData(np.ma.MaskedArray(pixels, mask))

    ours = render_tile(image(), kind, None, add_mask=add_mask, rescale=rescale)

    assert ours == render_image(image(), output_format=kind, add_mask=add_mask, rescale=rescale)


BAD_RENDERS = {
    "a list": [1],
    "a word": {"default": "terrain"},
    "rescale of words": {"default": {"rescale": [["a", "b"]]}},
    "rescale of numbers": {"default": {"rescale": [0, 10]}},
    "rescale of three numbers": {"default": {"rescale": [[0, 1, 2]]}},
    "rescale with minimum and maximum swapped": {"default": {"rescale": [[10, 0]]}},
    "rescale of an empty range": {"default": {"rescale": [[0, 0]]}},
    "bidx of words": {"default": {"bidx": ["red"]}},
    "bidx from 0": {"default": {"bidx": [0]}},
    "bidx of five bands": {"default": {"bidx": [1, 1, 1, 1, 1]}},
    "an unknown colormap_name": {"default": {"colormap_name": "rainbows"}},
    "a colormap_name that is a list": {"default": {"colormap_name": ["viridis"]}},
    "a colormap with a word as value": {"default": {"colormap": {"x": "#ff0000"}}},
    "a colormap without colours": {"default": {"colormap": {"1": "reddish"}}},
    "a colormap of too many colours": {"default": {"colormap": {str(n): "#000000" for n in range(5000)}}},
    "a colormap of colours out of range": {"default": {"colormap": {"1": [0, 0, 999]}}},
    "a colormap of incomplete intervals": {"default": {"colormap": [[[0], "#ff0000"]]}},
    "an unknown resampling": {"default": {"resampling": "magic"}},
}


@pytest.mark.parametrize("renders", BAD_RENDERS.values(), ids=BAD_RENDERS.keys())
def test_invalid_renders_of_the_catalogue_are_reported_and_values_are_served(client, monkeypatch, renders):
    from dagmaster.serving import sources
    from dagmaster.serving.rendering import rendering_of

    entry = {"renders": renders}
    monkeypatch.setattr(sources, "rendering_of", lambda _properties, asset, *_: rendering_of(entry, asset))
    for path in (f"{INSIDE}.png", "preview.png", "WebMercatorQuad/tilejson.json"):
        response = client.get(f"/tiles/plain/{path}")
        assert (response.status_code, response.json()["code"]) == (422, "tiles.bad-renders"), path
    assert client.get("/tiles/plain/point/10.5,50.5").json()["values"] == [100]
    assert client.get("/tiles/plain/statistics").status_code == 200


@pytest.mark.parametrize(
    "parameters",
    [
        "rescale=0,1&rescale=0,2&rescale=0,3",
        "colormap_name=viridis&bidx=1&bidx=2&bidx=3",
        "bidx=1&bidx=2",
        "bidx=0",
        "nodata=1e300",
        "nodata=nan",
        "nodata=-1",
        "rescale=1e19,2e19",
        "rescale=-1e300,1e300",
        "rescale=5,1",
        "colormap_name=terrain&return_mask=false",
        "unscale=true&rescale=0,1",
    ],
)
@pytest.mark.parametrize("dataset", ["plain", "dem", "scene", "tiled", "grown"])
def test_no_display_parameter_causes_a_server_error(client, dataset, parameters):
    for path in (f"{tile_at(11.5 if dataset == 'grown' else 10.5, 50.5, 9)}{{}}", "preview{}"):
        for ending in (".png", ".jpg", ".webp", ""):
            response = client.get(f"/tiles/{dataset}/{path.format(ending)}?{parameters}")
            assert response.status_code in (200, 400), (path, ending, response.text[:300])
