"""URLs of the catalogue lead to files of the served zones only; mosaics find the COGs that a tile touches."""

import json
import random

import numpy as np
import pytest
from morecantile import tms

from dagmaster.errors import UnfitData
from dagmaster.serving.mosaics import MAX_ASSETS, MosaicCache, parse, quadkey
from dagmaster.serving.readers import ReaderInput, open_for_display
from dagmaster.serving.rendering import rendering_of
from dagmaster.serving.sources import SourceKind, TileSource, _mosaic_source, cog_source, location_of
from dagmaster.storage.location import Edition, Location, Zone
from tests.serving.conftest import BOX
from tests.serving.data import href, stored, write_cog

pytestmark = pytest.mark.requirement("C2")

GRID = tms.get("WebMercatorQuad")
MOSAIC = Location(Zone.SILVER, "silver", "mosaics/x/v0/r1/mosaic.json")


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("http://127.0.0.1:8003/files/silver/silver/cogs/x/v0/r1/a.tif", "silver/cogs/x/v0/r1/a.tif"),
        ("https://maps.example/geo/files/external/maps/a%20b.tif", "maps/a b.tif"),
        ("/files/silver/silver/cogs/x/v0/r1/a.tif", "silver/cogs/x/v0/r1/a.tif"),
    ],
)
def test_an_address_of_the_server_is_a_location(address, path):
    assert location_of(address).path == path


@pytest.mark.parametrize(
    "address",
    [
        "/vsicurl/http://127.0.0.1/x.tif",
        "file:///files/silver/silver/x.tif",
        "//files/silver/silver/x.tif",
        "files/silver/silver/x.tif",
        "http://h/files/bronze/bronze/secret.tif",
        "http://h/files/silver/silver/../../bronze/bronze/secret.tif",
        "http://h/files/silver/silver/%2e%2e/%2e%2e/bronze/secret.tif",
        "http://h/other/silver/silver/x.tif",
        "http://h/files/silver/silver//etc/passwd",
        "http://h/files/silver/",
        "s3://bucket/files/silver/silver/x.tif",
        "",
    ],
)
def test_any_other_address_is_refused(address):
    with pytest.raises(UnfitData):
        location_of(address)


def mosaic(tiles, **more):
    document = {"mosaicjson": "0.0.3", "minzoom": 6, "maxzoom": 10, "quadkey_zoom": 8, "bounds": BOX, "tiles": tiles}
    return parse(json.dumps({**document, **more}).encode(), MOSAIC)


def test_a_mosaics_assets_are_those_of_its_edition():
    read = mosaic({"12020312": ["r0/a.tif", "b.tif"], "12020313": ["b.tif"]}, asset_prefix="t-")

    assert [place.blob for place in read.all_assets()] == ["cogs/x/v0/r1/t-r0/a.tif", "cogs/x/v0/r1/t-b.tif"]


def test_a_mosaics_assets_may_be_addresses_of_the_server():
    read = mosaic({"12020312": ["r0.tif"]}, asset_prefix="http://h/files/silver/silver/cogs/x/v0/r1/")

    assert read.all_assets() == [Location(Zone.SILVER, "silver", "cogs/x/v0/r1/r0.tif")]


@pytest.mark.parametrize(
    "name",
    ["../../../../secret.tif", "/etc/passwd", "/vsicurl/http://h/x.tif", "http://h/x.tif", "s3://b/x.tif", "", "."],
)
def test_a_mosaic_of_foreign_files_is_refused(name):
    with pytest.raises(UnfitData):
        mosaic({"12020312": [name]})


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"mosaicjson": "0.0.3", "tiles": 7}', b"\xff"])
def test_what_is_no_mosaic_is_refused(document):
    with pytest.raises(UnfitData):
        parse(document, MOSAIC)


def test_quadkeys_are_those_of_the_grid():
    seeded = random.Random(7)
    for _ in range(200):
        zoom = seeded.randrange(1, 20)
        x, y = seeded.randrange(2**zoom), seeded.randrange(2**zoom)
        assert quadkey(x, y, zoom) == GRID.quadkey(x, y, zoom)
    assert quadkey(0, 0, 0) == ""


def test_a_tile_finds_the_assets_of_every_quadkey_it_touches():
    """Compared with a search through all assets, at zooms above, at and below that of the index."""
    seeded = random.Random(11)
    index = {
        quadkey(seeded.randrange(530, 550), seeded.randrange(340, 350), 10): [f"a{n}.tif", f"b{n % 7}.tif"]
        for n in range(120)
    }
    read = mosaic(index, quadkey_zoom=10)

    for _ in range(300):
        zoom = seeded.randrange(0, 14)
        lon, lat = seeded.uniform(4, 14), seeded.uniform(49, 52)
        x, y, z = GRID.tile(lon, lat, zoom)
        key = quadkey(x, y, z)
        touched = {
            name for other, names in index.items() if other.startswith(key) or key.startswith(other) for name in names
        }
        assert {place.name for place in read.assets_for_tile(x, y, z)} == touched


def test_a_mosaic_of_too_many_is_refused_rather_than_read(storage):
    tiles = {"12020312": [f"{n}.tif" for n in range(MAX_ASSETS + 1)]}
    document = json.dumps(
        {"mosaicjson": "0.0.3", "minzoom": 0, "maxzoom": 10, "quadkey_zoom": 8, "tiles": tiles}
    ).encode()
    source = TileSource("x", SourceKind.MOSAIC, 0, 1, MOSAIC, BOX, "d")
    x, y, z = GRID.quadkey_to_tile("12020312")

    with (
        open_for_display(ReaderInput(source, storage, MosaicCache(lambda _: document))) as opened,
        pytest.raises(Exception, match="501 files"),
    ):
        opened.tile(x, y, z)


def test_a_file_that_is_no_tiff_is_not_opened_by_another_driver(storage, tmp_path):
    """A VRT would lead to any file or host that it names."""
    inner = write_cog(tmp_path / "inner.tif", np.full((1, 64, 64), 1, np.uint8), BOX)
    location = storage.location("cogs/vrt/v0/r1/x.tif", zone=Zone.SILVER)
    vrt = f"""<VRTDataset rasterXSize="64" rasterYSize="64"><SRS>EPSG:4326</SRS>
    <GeoTransform>10,0.0156,0,51,0,-0.0156</GeoTransform>
    <VRTRasterBand dataType="Byte" band="1">
    <SimpleSource><SourceFilename>{inner}</SourceFilename></SimpleSource>
    </VRTRasterBand>
    </VRTDataset>"""
    storage.put(location, vrt.encode())
    source = TileSource("vrt", SourceKind.COG, 0, 1, location, BOX, "d")

    with pytest.raises(Exception, match=r"not recognized|not a supported|GTiff"):
        open_for_display(ReaderInput(source, storage, MosaicCache(storage.get)))


@pytest.mark.parametrize(
    ("count", "more", "shown"),
    [(8, {}, 3), (4, {"photometric": "rgb", "alpha": "unassociated"}, 3), (2, {}, 1), (1, {}, 1)],
)
def test_by_default_three_bands_are_shown_or_one(storage, tmp_path, count, more, shown):
    bands = np.stack([np.full((64, 64), 10 * n + 5, np.uint8) for n in range(count)])
    location = stored(storage, tmp_path, f"cogs/b{count}{len(more)}/v0/r1/x.tif", bands, BOX, **more)
    src_path = ReaderInput(TileSource("b", SourceKind.COG, 0, 1, location, BOX, "d"), storage, MosaicCache(storage.get))

    with open_for_display(src_path) as opened:
        assert opened.preview().count == shown
        assert opened.tile(*GRID.tile(10.5, 50.5, 9)).array[:, 128, 128].tolist() == [5, 15, 25][:shown]
        assert opened.point(10.5, 50.5).count >= shown


def test_where_cogs_overlap_the_first_that_has_data_is_seen(storage, tmp_path):
    edition, half = Edition("overlap"), np.full((1, 64, 64), 7, np.uint8)
    half[:, :, 32:] = 0
    stored(storage, tmp_path, edition.cog("a.tif"), half, BOX, nodata=0)
    stored(storage, tmp_path, edition.cog("b.tif"), np.full((1, 64, 64), 9, np.uint8), BOX, nodata=0)
    x, y, z = GRID.tile(10.5, 50.5, 6)
    document = {
        "mosaicjson": "0.0.3",
        "minzoom": 6,
        "maxzoom": 9,
        "quadkey_zoom": 6,
        "bounds": BOX,
        "tiles": {GRID.quadkey(x, y, z): ["a.tif", "b.tif"]},
    }
    location = storage.location(edition.mosaic(), zone=Zone.SILVER)
    storage.put(location, json.dumps(document).encode())
    src_path = ReaderInput(
        TileSource("overlap", SourceKind.MOSAIC, 0, 1, location, BOX, "d"), storage, MosaicCache(storage.get)
    )

    with open_for_display(src_path) as opened:
        assert opened.point(10.2, 50.5).array.tolist() == [7]
        assert opened.point(10.8, 50.5).array.tolist() == [9]
        assert set(np.unique(opened.tile(x, y, z).array.compressed())) == {7, 9}
        assert opened.preview(width=4, height=4).array[0].tolist() == [[7, 7, 9, 9]] * 4


def test_the_cogs_of_a_tile_are_read_in_the_mosaics_order_each_as_often_as_it_is_named(storage, tmp_path):
    """Each has data in a column more than the one before."""
    edition, names = Edition("order"), [f"{n}.tif" for n in range(1, 7)]
    for number, name in enumerate(names, 1):
        pixels = np.full((1, 64, 64), number, np.uint8)
        pixels[:, :, number * 10 :] = 0
        stored(storage, tmp_path, edition.cog(name), pixels, BOX, nodata=0)
    tile = GRID.tile(10.5, 50.5, 6)
    listed = [*names[:2], *names[1:], names[2]]
    document = {
        "mosaicjson": "0.0.3",
        "minzoom": 6,
        "maxzoom": 9,
        "quadkey_zoom": 6,
        "bounds": BOX,
        "tiles": {GRID.quadkey(tile): listed},
    }
    location = storage.location(edition.mosaic(), zone=Zone.SILVER)
    storage.put(location, json.dumps(document).encode())
    src_path = ReaderInput(
        TileSource("order", SourceKind.MOSAIC, 0, 1, location, BOX, "d"), storage, MosaicCache(storage.get)
    )

    with open_for_display(src_path) as opened:
        row = opened.tile(*tile, tilesize=1024).array[0, 600]

    assert list(dict.fromkeys(row.compressed().tolist())) == [1, 2, 3, 4, 5, 6]


def test_a_source_says_which_revision_it_is():
    edition = Edition("x", 3, 2)
    place = Location(Zone.SILVER, "silver", edition.cog("x.tif"))
    answers = {
        "properties": {"dagmaster:revision": 2, "updated": "2024"},
        "bbox": [170, -10, 0, -170, 10, 9],
        "assets": {"data": {"href": href(place), "file:checksum": "1220ab"}},
    }

    source = cog_source("x", {}, answers, 3)
    again = cog_source("x", {}, {**answers, "properties": {"dagmaster:revision": 2, "updated": "2025"}}, 3)

    assert (source.ordinal, source.revision, source.location) == (3, 2, place)
    assert source.bounds == (170, -10, -170, 10)
    assert source.tag != again.tag
    assert source.tag.startswith("3-2-")


@pytest.mark.parametrize(
    ("more", "edition"),
    [({}, (4, 2)), ({"dagmaster:version_ordinal": 7, "dagmaster:revision": 3}, (7, 3))],
)
def test_a_mosaics_edition_is_said_or_named(more, edition):
    place = Location(Zone.SILVER, "silver", Edition("x", 4, 2).mosaic())

    source = _mosaic_source("x", {"extent": {"spatial": {"bbox": [list(BOX)]}}, **more}, {"href": href(place)})

    assert (source.ordinal, source.revision) == edition
    assert source.bounds == BOX


def test_without_renders_the_statistics_of_the_bands_set_the_style():
    band = {"data_type": "uint16", "statistics": {"minimum": 5, "maximum": 4000}}
    rendering = rendering_of({}, {"bands": [band, {"data_type": "uint8", "statistics": {"minimum": 5, "maximum": 9}}]})

    assert rendering.rescale_for([1]) == [(5, 4000)]
    assert rendering.rescale_for([2]) is None
    assert rendering.rescale_for([1, 2]) is None
    assert rendering.rescale_for([9]) is None
    assert rendering.rescale_for(None) is None


def test_renders_are_read_as_the_extension_has_them():
    rendering = rendering_of(
        {
            "renders": {
                "default": {"assets": ["data"], "rescale": [[0, 10]], "nodata": "nan", "colormap": {"1": "#ff0000"}}
            }
        },
        {},
    )

    assert rendering.rescale == ((0, 10),)
    assert np.isnan(rendering.nodata)
    assert rendering.colormap == {1: (255, 0, 0, 255)}


@pytest.mark.parametrize(("kind", "stretch"), [("uint8", None), ("uint16", [(0, 255)])])
def test_bytes_that_fill_their_range_are_not_stretched(kind, stretch):
    renders = {"default": {"rescale": [[0, 255]]}}

    assert rendering_of({"renders": renders}, {"bands": [{"data_type": kind}]}).rescale_for(None) == stretch
