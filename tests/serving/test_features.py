"""Routes of TiTiler other than those of tiles: grids, WMTS, crops, statistics of areas, expressions, colour maps."""

import json
from contextlib import suppress
from xml.etree import ElementTree

import numpy as np
import pytest
from morecantile import tms
from rasterio.io import MemoryFile

from dagmaster.errors import InvalidRequest
from dagmaster.serving.dataset_pool import DatasetPool
from dagmaster.serving.dependencies import MAX_AREAS
from dagmaster.serving.expressions import require_expression
from dagmaster.serving.filters import MAX_VERTICES
from dagmaster.serving.readers import CogReader
from tests.serving.data import decoded, write_cog

pytestmark = pytest.mark.requirement("C2")

GRIDS = ["WebMercatorQuad", "WorldCRS84Quad", "WGS1984Quad", "EuropeanETRS89_LAEAQuad", "UTM31WGS84Quad"]


def polygon(west, south, east, north):
    return {
        "type": "Polygon",
        "coordinates": [[[west, south], [east, south], [east, north], [west, north], [west, south]]],
    }


def feature(*box):
    return {"type": "Feature", "properties": {"name": "a"}, "geometry": polygon(*box)}


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("dataset", "value"), [("plain", 100), ("tiled", 20)])
def test_tiles_of_every_grid_show_the_data(client, grid, dataset, value):
    tilejson = client.get(f"/tiles/{dataset}/{grid}/tilejson.json").json()
    zoom = tilejson["maxzoom"]
    tile = tms.get(grid).tile(10.75, 50.75, zoom)
    response = client.get(tilejson["tiles"][0].format(z=zoom, x=tile.x, y=tile.y), headers={"accept": "image/png"})
    picture = decoded(client.get(f"/tiles/{dataset}/tiles/{grid}/{zoom}/{tile.x}/{tile.y}.png").content)
    row, column = pixel_of(tms.get(grid), tile, 10.75, 50.75)

    assert response.status_code == 200
    assert f"/tiles/{grid}/" in tilejson["tiles"][0]
    assert tilejson["minzoom"] <= zoom
    assert picture[0][row, column] == value
    assert picture[1][row, column] == 255


def pixel_of(grid, tile, lon, lat):
    bounds = grid.xy_bounds(tile)
    x, y = grid.xy(lon, lat)
    return (
        min(255, int((bounds.top - y) / (bounds.top - bounds.bottom) * 256)),
        min(255, int((x - bounds.left) / (bounds.right - bounds.left) * 256)),
    )


@pytest.mark.parametrize("tile", ["0/5/5", "99/0/0", "-1/0/0", "3/0/99"])
@pytest.mark.parametrize("grid", ["WorldCRS84Quad", "UPSArcticWGS84Quad"])
def test_a_tile_that_a_grid_does_not_have_is_not_found(client, grid, tile):
    response = client.get(f"/tiles/plain/tiles/{grid}/{tile}.png")

    assert (response.status_code, response.json()["code"]) == (404, "tiles.outside")


def test_an_unknown_grid_is_refused(client):
    for path in ("tiles/Nonsense/1/1/1.png", "Nonsense/tilejson.json"):
        response = client.get(f"/tiles/plain/{path}")
        assert (response.status_code, response.json()["code"]) == (422, "request.invalid")


def test_the_setting_limits_the_grids(served, storage):
    from starlette.testclient import TestClient

    from dagmaster.serving.app import create_app
    from dagmaster.settings import load

    app = create_app(load(serving_grids="WorldCRS84Quad"), served, storage=storage)
    with TestClient(app, base_url="http://localhost") as client:
        listed = [grid["id"] for grid in client.get("/tileMatrixSets").json()["tileMatrixSets"]]
        assert listed == ["WebMercatorQuad", "WorldCRS84Quad"]
    with pytest.raises(InvalidRequest):
        create_app(load(serving_grids="Nonsense"), served, storage=storage)


def test_every_link_of_the_tilesets_works(client):
    sets = client.get("/tileMatrixSets").json()["tileMatrixSets"]
    tilesets = client.get("/tiles/plain/tiles").json()["tilesets"]

    assert len(tilesets) == len(sets) >= 10
    for entry in [*sets, *tilesets]:
        for link in entry["links"]:
            assert "%7B" not in link["href"]
            if "{" not in link["href"]:
                assert client.get(link["href"]).status_code == 200, link
    detail = client.get("/tiles/plain/tiles/WebMercatorQuad").json()
    (template,) = [link["href"] for link in detail["links"] if link["rel"] == "tile"]
    tile = tms.get("WebMercatorQuad").tile(10.5, 50.5, 9)
    url = template.replace("{z}", "9").replace("{x}", str(tile.x)).replace("{y}", str(tile.y))
    assert client.get(url).status_code == 200
    assert any("ogcapi-tiles-1" in uri for uri in client.get("/conformance").json()["conformsTo"])


def test_the_wmts_describes_tiles_that_exist(client):
    response = client.get("/tiles/dem/WMTSCapabilities.xml?SERVICE=WMTS&REQUEST=GetCapabilities&version=0")
    document = ElementTree.fromstring(response.text)
    templates = [node.get("template") for node in document.iter() if node.tag.endswith("ResourceURL")]
    (mercator,) = [template for template in templates if "WebMercatorQuad" in template]
    tile = tms.get("WebMercatorQuad").tile(10.5, 50.5, 9)
    for name, value in (("TileMatrix", 9), ("TileCol", tile.x), ("TileRow", tile.y)):
        mercator = mercator.replace(f"{{{name}}}", str(value))

    assert response.headers["content-type"].startswith("application/xml")
    assert client.get(mercator).headers["content-type"] == "image/png"
    assert "version=0" in mercator


@pytest.mark.parametrize("dataset", ["plain", "tiled"])
def test_the_wmts_has_the_zoom_levels_of_the_dataset(client, dataset):
    """GDAL opens the finest level of a grid, whatever the limits of the layer are."""
    document = ElementTree.fromstring(client.get(f"/tiles/{dataset}/WMTSCapabilities.xml").text)
    names = {"wmts": "http://www.opengis.net/wmts/1.0", "ows": "http://www.opengis.net/ows/1.1"}

    for grid in GRIDS:
        tilejson = client.get(f"/tiles/{dataset}/{grid}/tilejson.json").json()
        (matrix_set,) = document.findall(f"wmts:Contents/wmts:TileMatrixSet[ows:Identifier='{grid}']", names)
        levels = [node.text for node in matrix_set.findall("wmts:TileMatrix/ows:Identifier", names)]
        assert levels == [str(zoom) for zoom in range(tilejson["minzoom"], tilejson["maxzoom"] + 1)]


@pytest.mark.parametrize(("dataset", "expected"), [("plain", {100}), ("tiled", {10, 20, 30, 40})])
def test_a_crop_of_a_box_is_served(client, dataset, expected):
    for path, shape in (
        ("bbox/10.25,50.25,10.75,50.75.png", None),
        ("bbox/10.25,50.25,10.75,50.75/64x32.png", (32, 64)),
    ):
        response = client.get(f"/tiles/{dataset}/{path}")
        picture = decoded(response.content)
        assert response.status_code == 200
        assert set(np.unique(picture[0])) == expected
        assert (picture[1] == 255).all()
        assert shape in (None, picture.shape[1:])
        assert response.headers["etag"]


def test_a_crop_shows_the_requested_box(client):
    response = client.get("/tiles/dem/bbox/10.5,50.25,10.75,50.5/50x50.png?colormap_name=gray&rescale=0,2000")
    west, south, east, north = map(float, response.headers["content-bbox"].split(","))
    picture = decoded(response.content)

    assert (west, south, east, north) == (10.5, 50.25, 10.75, 50.5)
    assert abs(int(picture[0, 25, 0]) - 127) <= 3  # the heights rise from 0 in the west to 2000 in the east
    assert abs(int(picture[0, 25, 49]) - 191) <= 3


@pytest.mark.parametrize(
    "box", ["nan,0,1,1", "0,0,inf,1", "11,50,10,51", "10,51,11,50", "10,50,10,51", "-181,0,0,1", "0,0,1,91", "a,b,c,d"]
)
def test_an_invalid_box_is_refused(client, box):
    response = client.get(f"/tiles/plain/bbox/{box}.png")

    assert response.status_code in (400, 422)
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("size", ["9000x10", "0x10", "10x4000"])
def test_the_size_of_a_crop_is_limited(client, size):
    assert client.get(f"/tiles/plain/bbox/10,50,11,51/{size}.png").status_code in (400, 422)
    assert client.post(f"/tiles/plain/feature/{size}.png", json=feature(10, 50, 11, 51)).status_code in (400, 422)
    assert client.get("/tiles/plain/bbox/10,50,11,51.png?max_size=3000").status_code in (400, 422)


@pytest.mark.parametrize("dataset", ["plain", "tiled"])
def test_a_box_outside_the_data_is_transparent_or_not_found(client, dataset):
    response = client.get(f"/tiles/{dataset}/bbox/40,0,41,1.png")

    assert response.status_code in (200, 404)
    if response.status_code == 200:
        assert (decoded(response.content)[-1] == 0).all()


@pytest.mark.parametrize("dataset", ["plain", "tiled"])
def test_a_crop_of_a_feature_ends_at_its_edge(client, dataset):
    triangle = {
        "type": "Feature",
        "properties": {},
        "geometry": {"type": "Polygon", "coordinates": [[[10.1, 50.1], [10.9, 50.1], [10.1, 50.9], [10.1, 50.1]]]},
    }
    response = client.post(f"/tiles/{dataset}/feature/100x100.png", json=triangle)
    shown = decoded(response.content)[1] == 255

    assert response.status_code == 200
    assert [shown[90, 10], shown[10, 2], shown[10, 90]] == [True, True, False]
    assert 0.45 < shown.mean() < 0.55


@pytest.mark.parametrize(("dataset", "mean"), [("plain", 100), ("tiled", 25)])
def test_statistics_are_computed_within_the_polygon(client, dataset, mean):
    one = client.post(
        f"/tiles/{dataset}/statistics?histogram_bins=4&max_size=128", json=feature(10.25, 50.25, 10.75, 50.75)
    )
    statistics = one.json()["properties"]["statistics"]["b1"]

    assert one.status_code == 200
    assert one.headers["content-type"] == "application/geo+json"
    assert statistics["mean"] == pytest.approx(mean, abs=0.5)
    assert one.json()["properties"]["name"] == "a"


def test_statistics_are_computed_for_each_of_several_polygons(client):
    body = {"type": "FeatureCollection", "features": [feature(10.1, 50.6, 10.4, 50.9), feature(10.6, 50.1, 10.9, 50.4)]}
    response = client.post("/tiles/tiled/statistics?max_size=64", json=body).json()

    means = [one["properties"]["statistics"]["b1"]["mean"] for one in response["features"]]
    assert means == [pytest.approx(10), pytest.approx(40)]


def ring(count):
    angles = np.linspace(0, 2 * np.pi, count)
    return [[10.5 + 0.3 * float(np.cos(angle)), 50.5 + 0.3 * float(np.sin(angle))] for angle in angles]


BODIES = {
    "nothing": None,
    "a number": 7,
    "an empty object": {},
    "a point": {"type": "Feature", "properties": {}, "geometry": {"type": "Point", "coordinates": [10, 50]}},
    "no geometry": {"type": "Feature", "properties": {}, "geometry": None},
    "metres": feature(1_000_000, 5_000_000, 1_100_000, 5_100_000),
    "words": feature("a", "b", "c", "d"),
    "an empty ring": {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [[]]}},
    "no features": {"type": "FeatureCollection", "features": []},
    "too many features": {"type": "FeatureCollection", "features": [feature(10, 50, 11, 51)] * (MAX_AREAS + 1)},
    "too many vertices": {
        "type": "Feature",
        "properties": {},
        "geometry": {"type": "Polygon", "coordinates": [ring(MAX_VERTICES + 1)]},
    },
    "a flat line": feature(10, 50, 10, 51),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("path", ["statistics", "feature.png"])
def test_a_body_that_is_not_a_polygon_or_too_large_is_refused(client, path, body):
    response = client.post(
        f"/tiles/plain/{path}", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )

    assert response.status_code in (400, 422), response.text[:300]
    assert response.headers["content-type"] == "application/problem+json"


def test_a_polygon_outside_the_data_has_no_statistics(client):
    for dataset in ("plain", "tiled"):
        response = client.post(f"/tiles/{dataset}/statistics", json=feature(40, 0, 41, 1))
        assert response.status_code in (200, 404), response.text


def test_an_expression_computes_with_bands(client):
    """The bands are 1000, 2000, 3000 and 4000 everywhere."""
    query = "expression=(b4-b1)/(b4%2Bb1)"
    point = client.get(f"/tiles/scene/point/10.5,50.5?{query}").json()
    statistics = client.get(f"/tiles/scene/statistics?{query}&max_size=64").json()
    tile = tms.get("WebMercatorQuad").tile(10.5, 50.5, 11)
    picture = decoded(
        client.get(f"/tiles/scene/tiles/WebMercatorQuad/11/{tile.x}/{tile.y}.png?{query}&rescale=0,1").content
    )
    three = client.get("/tiles/scene/preview.png?expression=b1;b2;b3*2&rescale=0,8000&max_size=32")

    assert point["values"] == [pytest.approx(0.6)]
    (band,) = statistics.values()
    assert band["mean"] == pytest.approx(0.6)
    assert set(np.unique(picture[0])) == {153}
    assert decoded(three.content)[:3, 16, 10].tolist() == [31, 63, 191]


@pytest.mark.parametrize("path", ["preview.png", "bbox/10,50,11,51.png", "statistics", "point/10.6,50.6"])
@pytest.mark.parametrize("dataset", ["scene", "tiled"])
def test_expressions_work_in_every_route(client, dataset, path):
    assert client.get(f"/tiles/{dataset}/{path}?expression=b1*2").status_code == 200
    missing = client.get(f"/tiles/{dataset}/{path}?expression=b9")
    assert (missing.status_code, missing.json()["code"]) == (400, "tiles.no-band")


@pytest.mark.parametrize(
    "text",
    [
        "b1",
        "b1+1",
        "-b1",
        "~(b1>2)",
        "where(b1>100,b1,0)",
        "sqrt(b1)**2",
        "(b1>1)&(b2<3)|(b3==2)",
        "log10(abs(b1)+1.5e3)",
        "b1;b2;b3",
    ],
)
def test_arithmetic_is_accepted(text):
    assert require_expression(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "9**9**9",
        "b1**(9**9)",
        "b1+9**9",
        "b1+sqrt(2)",
        "b1 if b1 else b2",
        "b1.real",
        "b1[0]",
        "[b1]",
        "(b1,b2)",
        "lambda: b1",
        "__import__('os').system('id')",
        "b1.__class__",
        "exec(b1)",
        "open(b1)",
        "eval('b1')",
        "sum(b1)",
        "where(b1)",
        "sqrt(b1,b1)",
        "sqrt(x=b1)",
        "b0",
        "b1000",
        "c1",
        "b1;b2;b3;b4",
        "b1;",
        "b1 and b2",
        "not b1",
        "b1 < b2 < b3",
        "b1//2",
        "b1%2",
        "b1<<9",
        "b1@b2",
        "'b1'",
        "b1+1e999",
        "b1+1j",
        "b1+True",
        "(" * 100 + "b1" + ")" * 99,
        "(" * 90 + "b1" + ")" * 90 + "+" * 30,
        "b1+" * 100 + "b1",
        "b1:=2",
        "b1\n+b2",
        "b1#",
    ],
)
def test_expressions_that_are_not_arithmetic_are_refused(text):
    with pytest.raises(InvalidRequest):
        require_expression(text)


def test_random_text_is_only_evaluated_if_it_is_arithmetic():
    """Accepted texts contain only names and operators of arithmetic, and are evaluated quickly."""
    import re
    import time

    import numexpr

    random = np.random.default_rng(14)
    words = [
        "b1",
        "b2",
        "(",
        ")",
        "+",
        "-",
        "*",
        "/",
        "**",
        "9",
        "1e9",
        "sqrt",
        "where",
        ",",
        "<",
        "&",
        "~",
        "abs",
        ";",
    ]
    bands = {f"b{number}": np.full(4, number, "float32") for number in range(1, 1000)}
    passed = 0
    for _ in range(4000):
        text = "".join(random.choice(words, random.integers(1, 9)))
        try:
            require_expression(text)
        except InvalidRequest:
            continue
        passed += 1
        assert set(re.findall(r"[a-z]+", text)) <= {"b", "e", "sqrt", "where", "abs"}
        started = time.monotonic()
        for part in text.split(";"):
            with suppress(TypeError, NotImplementedError, ValueError):  # no such operator for these types
                numexpr.evaluate(part.strip(), local_dict=bands)
        assert time.monotonic() - started < 1
    assert passed > 50


def test_colour_maps_are_listed_and_described(client):
    listed = client.get("/colorMaps").json()
    viridis = client.get("/colorMaps/viridis").json()

    assert "viridis" in {one["id"] for one in listed["colorMaps" if "colorMaps" in listed else "colormaps"]}
    assert viridis["0"] == [68, 1, 84, 255]
    assert client.get("/colorMaps/nonsense").status_code in (404, 422)


@pytest.mark.parametrize("colors", [{"100": "#ff0000"}, {"100": [255, 0, 0]}, [[[50, 150], [255, 0, 0, 255]]]])
def test_a_request_can_have_its_own_colour_map(client, colors):
    tile = tms.get("WebMercatorQuad").tile(10.5, 50.5, 11)
    for path in (f"tiles/WebMercatorQuad/11/{tile.x}/{tile.y}.png", "preview.png", "bbox/10,50,11,51.png"):
        response = client.get(f"/tiles/plain/{path}", params={"colormap": json.dumps(colors)})
        picture = decoded(response.content)
        assert picture[:3, picture.shape[1] // 2, picture.shape[2] // 2].tolist() == [255, 0, 0], path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "red",
        "[]x",
        "7",
        '{"x": "#fff"}',
        '{"1": "reddish"}',
        '{"1": [0, 0, 999]}',
        "[[1, 2]]",
        '{"1": null}',
        "NaN",
    ],
)
def test_invalid_colours_are_refused(client, text):
    response = client.get("/tiles/plain/preview.png", params={"colormap": text})

    assert response.status_code == 400, response.text


def test_two_colour_maps_in_one_request_are_refused(client):
    assert client.get('/tiles/plain/preview.png?colormap_name=viridis&colormap={"1":"#fff"}').status_code == 400


def test_too_many_colours_are_refused(client):
    colors = {str(value): "#000000" for value in range(1500)}

    assert client.get("/tiles/plain/preview.png", params={"colormap": json.dumps(colors)}).status_code == 400


def test_the_tilejson_describes_the_bands(client):
    (layer,) = client.get("/tiles/scene/WebMercatorQuad/tilejson.json").json()["raster_layers"]

    assert (layer["id"], layer["data_type"]) == ("scene", "uint16")
    assert [band["name"] for band in layer["bands"]] == ["b1", "b2", "b3", "b4"]


def test_a_crop_can_be_read_by_rasterio(client):
    content = client.get("/tiles/plain/bbox/10.2,50.2,10.4,50.4/40x40.png").content

    with MemoryFile(content) as memory, memory.open() as picture:
        assert (picture.width, picture.height) == (40, 40)
        assert (picture.read(1) == 100).all()


def test_the_openapi_document_lists_these_routes(client):
    paths = client.get("/openapi.json").json()["paths"]

    for path in (
        "/tiles/{asset_id}/tiles/{tileMatrixSetId}",
        "/tiles/{asset_id}/WMTSCapabilities.xml",
        "/tiles/{asset_id}/feature.{format}",
        "/tiles/{asset_id}/bbox/{minx},{miny},{maxx},{maxy}.{format}",
        "/tileMatrixSets/{tileMatrixSetId}",
        "/colorMaps/{colorMapId}",
        "/conformance",
    ):
        assert path in paths, path
    assert "post" in paths["/tiles/{asset_id}/statistics"]


@pytest.mark.parametrize("dataset", ["dem", "tiled"])
@pytest.mark.parametrize(
    ("box", "query", "expected"),
    [
        ((10.1, 50.0, 10.103, 51.0), "width=64", (2048, 64)),
        ((10.1, 50.1, 10.9, 50.103), "height=64", (64, 2048)),
        ((10.1, 50.1, 10.9, 50.5), "width=64", (32, 64)),
        ((10.1, 50.1, 10.3, 50.9), "width=64", (256, 64)),
        ((10.1, 50.1, 10.3, 50.9), "width=20&height=30", (30, 20)),
    ],
)
def test_the_sides_of_a_narrow_crop_are_limited(client, dataset, box, query, expected):
    """If one side is given, the other follows from the box: without a limit it could be millions of pixels."""
    crop = client.get(f"/tiles/{dataset}/bbox/{','.join(map(str, box))}.png?{query}")
    cut_out = client.post(f"/tiles/{dataset}/feature.png?{query}", json=feature(*box))

    assert decoded(crop.content).shape[1:] == expected
    assert decoded(cut_out.content).shape[1:] == expected


@pytest.mark.parametrize("query", ["width=0", "width=-1", "height=513", "width=2147483648", "height=x"])
def test_the_size_of_colour_map_images_is_limited(client, query):
    assert client.get("/colorMaps/viridis?f=png&width=512&height=300").status_code == 200
    assert client.get(f"/colorMaps/viridis?f=png&{query}").status_code == 422


def test_the_sides_of_a_preview_of_a_narrow_dataset_are_limited(tmp_path):
    strip = np.ones((1, 2000, 10), np.uint8)
    file = write_cog(tmp_path / "strip.tif", strip, (500_000, 5_000_000, 500_100, 5_020_000), crs="EPSG:32632")
    with CogReader(str(file), datasets=DatasetPool(), is_display=True) as reader:
        assert reader.preview(width=50).array.shape == (1, 2048, 50)
        assert reader.preview(height=400).array.shape == (1, 400, 2)


def test_the_error_for_a_refused_expression_says_what_is_allowed():
    for text in ("__import__('os')", "B1+B2", "b1 @ b2"):
        with pytest.raises(InvalidRequest, match="it may have bands"):
            require_expression(text)
    with pytest.raises(InvalidRequest, match="200 characters"):
        require_expression("b1+" * 100 + "b1")


@pytest.mark.parametrize("empty", [[], [[]], [[[10, 50], [11, 50], [10, 50]]]])
def test_an_empty_polygon_among_others_is_refused(client, empty):
    whole = polygon(10.1, 50.1, 10.9, 50.9)["coordinates"]
    area = {"type": "Feature", "properties": {}, "geometry": {"type": "MultiPolygon", "coordinates": [empty, whole]}}
    for path in ("feature/300x64.webp", "statistics"):
        assert client.post(f"/tiles/scene/{path}", json=area).status_code == 400
