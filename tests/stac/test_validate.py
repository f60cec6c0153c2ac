"""Every rule detects its mistake: each test makes one mistake in a valid document."""

import copy
import math

import pytest

from dagmaster.errors import InvalidRequest
from dagmaster.raster.source.facts import BandFacts
from dagmaster.stac import validate
from dagmaster.stac.validate import problems, refuse_invalid
from dagmaster.stac.values import EXTENSIONS
from tests.stac.documents import HOST, PALETTE, SHA, a_collection, an_item, cog, facts

pytestmark = pytest.mark.requirement("C1")

MISSING = object()


def changed(document, path, value):
    """A copy with one field changed, added, or (MISSING) removed."""
    document = copy.deepcopy(document)
    *way, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    place = document
    for step in way:
        place = place[step]
    if value is MISSING:
        del place[last]
    elif isinstance(place, list) and last == len(place):
        place.append(value)
    else:
        place[last] = value
    return document


def codes(document):
    return {problem.code for problem in problems(document)}


def test_versions_of_extensions_that_earlier_releases_wrote_are_accepted():
    """Jobs that such a release started register their items after an upgrade. One release wrote projection 2.0."""
    extensions = [EXTENSIONS["projection"].replace("v1.2.0", "v2.0.0"), *an_item()["stac_extensions"][1:]]

    assert problems({**an_item(), "stac_extensions": extensions}) == []
    assert codes({**an_item(), "stac_extensions": extensions[1:]}) == {"declared-extensions"}


BAND = "assets/data/bands/0"
RENDER = "properties/renders/default"
LAST = {"rel": "xyz", "type": "image/png", "href": f"{HOST}/{{z}}/{{x}}/{{y}}"}

ITEM_MISTAKES = {
    # mistakes that the schemas of STAC detect
    "no geometry": ("geometry", MISSING, "schema"),
    "no bbox": ("bbox", MISSING, "schema"),
    "datetime null without a range": ("properties/end_datetime", MISSING, "schema"),
    "a naive time": ("properties/start_datetime", "2024-01-01T00:00:00", "schema"),
    "links are not a list": ("links", {}, "schema"),
    "an asset is not an object": ("assets/data", "x", "schema"),
    "properties are not an object": ("properties", [], "schema"),
    "old stac version": ("stac_version", "1.0.0", "version-of-stac"),
    # extensions
    "proj:epsg differs from proj:code": ("properties/proj:epsg", 3857, "projection"),
    "proj:epsg of an asset is text": ("assets/data/proj:epsg", "EPSG:4326", "projection"),
    "eo:band": ("assets/data/eo:band", [{}], "known-fields"),
    "raster:bands": ("assets/data/raster:bands", [{}], "known-fields"),
    "file:bits": ("assets/data/file:bits", 3, "known-fields"),
    "renders outside properties": ("renders", {}, "known-fields"),
    "an extension is used and not declared": ("stac_extensions", [EXTENSIONS["file"]], "declared-extensions"),
    "an extension is declared and not used": ("stac_extensions/8", EXTENSIONS["classification"], "declared-extensions"),
    "an old version of an extension": (
        "stac_extensions/0",
        "https://stac-extensions.github.io/projection/v1.1.0/schema.json",
        "declared-extensions",
    ),
    "proj:code is a number": ("properties/proj:code", "4326", "projection"),
    "proj:shape is not an integer": ("assets/data/proj:shape", [24, 60.5], "projection"),
    "proj:shape is flipped": ("assets/data/proj:shape", [60, 24], "projection"),
    "proj:transform is too short": ("assets/data/proj:transform", [1, 2, 3], "projection"),
    "proj:transform is in GDAL's order": (
        "assets/data/proj:transform",
        [174.0, 0.001, 0.0, -41.0, 0.0, -0.001],
        "projection",
    ),
    "proj:transform has a wrong last row": (
        "assets/data/proj:transform",
        [0.001, 0.0, 174.0, 0.0, -0.001, -41.0, 0.0, 0.0, 0.0],
        "projection",
    ),
    "proj:bbox is flipped": ("assets/data/proj:bbox", [-41.024, 174.0, -41.0, 174.06], "projection"),
    "no proj:transform": ("assets/data/proj:transform", MISSING, "projection"),
    "no bands": ("assets/data/bands", [], "bands-described"),
    "a band has no name": (f"{BAND}/name", MISSING, "bands-described"),
    "an unknown sampling": (f"{BAND}/raster:sampling", "pixel", "bands-described"),
    "a scale of zero": (f"{BAND}/raster:scale", 0, "bands-described"),
    "a scale that is text": (f"{BAND}/raster:scale", "1", "bands-described"),
    "a nodata that is text": (f"{BAND}/nodata", "-9999", "nodata"),
    "a nodata that is NaN": (f"{BAND}/nodata", math.nan, "plain-json"),
    "a statistic that is NaN": (f"{BAND}/statistics/mean", math.nan, "statistics"),
    "statistics include nodata": (f"{BAND}/statistics/minimum", -9999, "statistics"),
    "a mean outside the range": (f"{BAND}/statistics/mean", 100, "statistics"),
    "an impossible deviation": (f"{BAND}/statistics/stddev", 40, "statistics"),
    "percent above hundred": (f"{BAND}/statistics/valid_percent", 101, "statistics"),
    "values that the type cannot hold": (f"{BAND}/data_type", "int8", "nodata"),
    "buckets whose sum is wrong": (f"{BAND}/raster:histogram/buckets", [1, 2, 3, 4], "statistics"),
    "a wrong number of buckets": (f"{BAND}/raster:histogram/count", 5, "statistics"),
    "two buckets": (f"{BAND}/raster:histogram/buckets", [576, 576], "statistics"),
    "a histogram that is too short": (f"{BAND}/raster:histogram/max", 50, "statistics"),
    "a checksum that is not a multihash": ("assets/data/file:checksum", SHA, "files"),
    "no checksum": ("assets/data/file:checksum", MISSING, "files"),
    "a size that is text": ("assets/data/file:size", "12", "files"),
    "a header larger than its file": ("assets/data/file:header_size", 10**9, "files"),
    "no render": ("properties/renders", MISSING, "renders"),
    "a flat rescale": (f"{RENDER}/rescale", [0, 100], "renders"),
    "a rescale with minimum and maximum swapped": (f"{RENDER}/rescale", [[100, 0]], "renders"),
    "two rescales for one band": (f"{RENDER}/rescale", [[0, 1], [0, 1]], "renders"),
    "a render of another asset": (f"{RENDER}/assets", ["visual"], "renders"),
    "a band that does not exist": (f"{RENDER}/bidx", [2], "renders"),
    "an unknown resampling": (f"{RENDER}/resampling", "smooth", "renders"),
    "a render with nodata NaN": (f"{RENDER}/nodata", "NaN", "renders"),
    "a colormap that is a list": (f"{RENDER}/colormap", [], "renders"),
    "a map link without placeholders": ("links/6/href", f"{HOST}/tiles", "map-links"),
    "a map link to an unknown render": ("links/6/render", "other", "map-links"),
    "a subdomain without servers": ("links/6/href", "https://{s}.example.org/{z}/{x}/{y}", "map-links"),
    "a map link without a type": ("links/6/type", MISSING, "map-links"),
    "a version that is a number": ("properties/version", 1, "version"),
    "deprecated is text": ("properties/deprecated", "no", "version"),
    "software without versions": ("properties/processing:software", {"gdal": 3.1}, "processing"),
    "no lineage": ("properties/processing:lineage", MISSING, "processing"),
    # mistakes that no schema detects
    "a deprecated word for the licence": ("properties/license", "proprietary", "license"),
    "no licence": ("properties/license", MISSING, "license"),
    "an unknown role": ("properties/providers/0/roles", ["owner"], "providers"),
    "a box that is flipped": ("bbox", [-41.024, 174.0, -41.0, 174.06], "bbox"),
    "a box that does not match the geometry": ("bbox", [0, 0, 1, 1], "bbox"),
    "a box of three numbers": ("bbox", [174.0, -41.024, 174.06], "bbox"),
    "an internal path": ("assets/data/href", "/vsiaz/silver/dem.tif", "public-addresses"),
    "a signed address": ("assets/data/href", f"{HOST}/dem.tif?sv=1&sig=x", "public-addresses"),
    "a relative address": ("assets/thumbnail/href", "./thumbnail.png", "public-addresses"),
    "credentials": ("links/0/href", "https://a:b@data.example.org/stac", "public-addresses"),
    "a provider's file": ("properties/providers/0/url", "file:///etc", "public-addresses"),
    "a folder in the lineage": ("properties/processing:lineage", "from /mnt/bronze/a.tif", "public-addresses"),
    "a GDAL path in the description": ("properties/description", "read /vsicurl/https://x/a.tif", "public-addresses"),
    "a SAS in a platform's ref": ("properties/platform:dataset_id", "https://h/a?sv=1&sig=x", "public-addresses"),
    "a sentinel": ("properties/datetime", "1970-01-01T00:00:00Z", "honest-datetime"),
    "the year one": ("properties/start_datetime", "0001-01-01T00:00:00Z", "honest-datetime"),
    "the time of processing": ("properties/datetime", "2026-03-04T05:06:07Z", "honest-datetime"),
    "an interval with start and end swapped": ("properties/end_datetime", "2023-01-01T00:00:00Z", "honest-datetime"),
    "another zone": ("properties/updated", "2026-03-04T05:06:07+00:00", "times"),
    "a day that does not exist": ("properties/created", "2026-02-30T00:00:00Z", "times"),
    "updated before created": ("properties/updated", "2020-01-01T00:00:00Z", "order-of-times"),
    "too many decimals": ("geometry/coordinates/0/0/0", 174.00000001, "geometry"),
    "latitude first": ("geometry/coordinates/0/1", [-41.024, 174.06], "geometry"),
    "an open ring": ("geometry/coordinates/0/4", [174.0, -41.01], "geometry"),
    "a ring in the wrong direction": (
        "geometry/coordinates/0",
        [[174.0, -41.024], [174.0, -41.0], [174.06, -41.0], [174.06, -41.024], [174.0, -41.024]],
        "geometry",
    ),
    "a ring across the antimeridian": (
        "geometry/coordinates/0",
        [[179.0, -41.0], [-179.0, -41.5], [-179.0, -40.0], [179.0, -41.0]],
        "geometry",
    ),
    "a point": ("geometry", {"type": "Point", "coordinates": [174.0, -41.0]}, "geometry"),
    "an id of another dataset": ("id", "roads-v1", "id"),
    "an id with a part in capitals": ("id", "wellington-dem-v1-R0C0", "id"),
    "an id of another version": ("id", "wellington-dem-v2", "id"),
    "no link to the collection": ("links/3", MISSING, "item-links"),
    "two links to itself": (
        "links/7",
        {"rel": "self", "href": f"{HOST}/x", "type": "application/geo+json"},
        "item-links",
    ),
    "a wrong media type": ("assets/data/type", "image/tiff", "media-types"),
    "no roles": ("assets/thumbnail/roles", [], "media-types"),
    "a revision of zero": ("properties/dagmaster:revision", 0, "our-fields"),
    "an ordinal that is text": ("properties/dagmaster:version_ordinal", "1", "our-fields"),
    "a source checksum without prefix": ("properties/dagmaster:source_checksum", SHA, "our-fields"),
    "one of several checksums without prefix": ("properties/dagmaster:sources", [{"checksum": SHA}], "our-fields"),
    "sources that are not a list": ("properties/dagmaster:sources", "a.tif", "our-fields"),
    "a ref that is a number": ("properties/platform:id", 7, "our-fields"),
    "a value that JSON cannot hold": ("properties/gsd", {1}, "plain-json"),
}


@pytest.mark.parametrize("mistake", ITEM_MISTAKES)
def test_a_mistake_in_an_item_is_detected(mistake):
    path, value, code = ITEM_MISTAKES[mistake]

    document = changed(an_item(), path, value)

    assert code in codes(document)


COLLECTION_MISTAKES = {
    "no extent": ("extent", MISSING, "schema"),
    "an empty summary": ("summaries/gsd", [], "schema"),
    "properties": ("properties", {}, "collection-id"),
    "an id with spaces": ("id", "Two Words", "collection-id"),
    "a box with south and north swapped": ("extent/spatial/bbox/0", [174.0, 41.0, 174.06, -41.0], "extents"),
    "a box outside the globe": ("extent/spatial/bbox/0", [174.0, -41.0, 190.0, -40.0], "extents"),
    "an interval with start and end swapped": (
        "extent/temporal/interval/0",
        ["2024-01-01T00:00:00Z", "2023-01-01T00:00:00Z"],
        "extents",
    ),
    "an interval from the year one": ("extent/temporal/interval/0/0", "0001-01-01T00:00:00Z", "extents"),
    "a naive interval": ("extent/temporal/interval/0/0", "2024-01-01", "times"),
    "an address in item_assets": ("item_assets/data/href", f"{HOST}/x", "item-assets"),
    "a deprecated licence": ("license", "various", "license"),
    "a mosaic with a local path": ("assets/mosaic/href", "/data/mosaic.json", "public-addresses"),
    "a mosaic of another type": ("assets/mosaic/type", "text/plain", "media-types"),
    "no renders": ("renders", MISSING, "renders"),
    "a render of an asset that no item has": ("renders/default/assets", ["mosaic"], "renders"),
    "a numeric version": ("version", 3, "version"),
    "a wrong ordinal": ("dagmaster:version_ordinal", -1, "our-fields"),
    "raster:bands": ("item_assets/data/raster:bands", [], "known-fields"),
    "statistics of the mosaic that are inconsistent": ("assets/mosaic/bands/0/statistics/count", 3, "statistics"),
    "no map link names its render": ("links", [LAST], "map-links"),
}


@pytest.mark.parametrize("mistake", COLLECTION_MISTAKES)
def test_a_mistake_in_a_collection_is_detected(mistake):
    path, value, code = COLLECTION_MISTAKES[mistake]

    document = changed(a_collection(), path, value)

    assert code in codes(document)


def classified():
    band = BandFacts("uint8", color="palette", nodata=0, palette=PALETTE)
    return an_item(cog=cog(facts(band), raster_type="categorical", statistics=[None]))


@pytest.mark.parametrize(
    ("path", "value"),
    [("0/value", 1), ("0/value", "0"), ("1/name", "dry forest"), ("1/color_hint", "#228B22")],
)
def test_a_mistake_in_classes_is_detected(path, value):
    document = changed(classified(), f"assets/data/classification:classes/{path}", value)

    assert "classes" in codes(document)
    assert problems(classified()) == []


def test_map_links_without_a_render_are_detected():
    """Both extensions are declared, and no link names a render."""
    document = an_item()
    for link in document["links"]:
        link.pop("render", None)

    assert codes(document) == {"map-links"}


def test_a_deprecated_item_without_a_link_to_its_successor_is_invalid():
    document = changed(an_item(), "properties/deprecated", True)
    link = {"rel": "successor-version", "type": "application/geo+json", "href": f"{HOST}/stac/items/wellington-dem-v2"}

    assert codes(document) == {"item-links"}
    assert codes(changed(document, "links", [*document["links"], link])) == set()


def test_a_footprint_across_the_antimeridian_is_valid():
    parts = [
        [[[170.0, 0.0], [180.0, 0.0], [180.0, 5.0], [170.0, 5.0], [170.0, 0.0]]],
        [[[-180.0, 0.0], [-175.0, 0.0], [-175.0, 5.0], [-180.0, 5.0], [-180.0, 0.0]]],
    ]
    document = changed(
        changed(an_item(), "geometry", {"type": "MultiPolygon", "coordinates": parts}),
        "bbox",
        [170.0, 0.0, -175.0, 5.0],
    )

    assert problems(document) == []
    assert codes(changed(document, "bbox", [-175.0, 0.0, 170.0, 5.0])) == {"bbox"}
    assert problems(changed(document, "bbox", [-180.0, 0.0, 180.0, 5.0])) == []


def test_a_footprint_around_a_pole_is_valid():
    ring = [[-180.0, -90.0], [180.0, -90.0], [180.0, -60.0], [0.0, -55.0], [-180.0, -60.0], [-180.0, -90.0]]
    document = changed(
        changed(an_item(), "geometry", {"type": "Polygon", "coordinates": [ring]}),
        "bbox",
        [-180.0, -90.0, 180.0, -55.0],
    )

    assert problems(document) == []


def places(value, way=()):
    if way:
        yield "/".join(way)
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*way, str(key)))


@pytest.mark.parametrize("wrong", [None, 5, "x", [], {}, [{}]])
@pytest.mark.parametrize("make", [classified, a_collection])
def test_values_of_wrong_types_never_crash_the_validator(make, wrong, monkeypatch):
    valid = make()
    assert problems(changed(valid, "links", wrong))
    assert problems(changed(valid, "type", wrong))

    monkeypatch.setattr(
        validate, "_schema", lambda document: []
    )  # validation against the schemas is slow, and not the subject of this test
    for place in places(valid):
        assert isinstance(problems(changed(valid, place, wrong)), list), place


def test_a_problem_is_reported_with_its_location():
    document = changed(an_item(), "assets/data/file:checksum", SHA)

    [problem] = problems(document)

    assert problem.where == "assets.data.file:checksum"
    assert "multihash" in str(problem)
    with pytest.raises(InvalidRequest, match="multihash"):
        refuse_invalid(document)
    refuse_invalid(an_item())


def test_a_secret_is_not_repeated_in_a_problem():
    document = changed(an_item(), "assets/data/href", f"{HOST}/dem.tif?sig=hunter2")

    assert all("hunter2" not in str(problem) for problem in problems(document))
