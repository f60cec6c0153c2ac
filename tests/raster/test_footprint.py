"""Footprints follow the data: compared with GDAL's polygons and PROJ's corners, also at poles and the antimeridian."""

import json
import subprocess

import numpy as np
import pytest
import rasterio
import shapely
from affine import Affine
from rasterio.warp import transform as transform_points
from shapely.geometry import Point, shape

from dagmaster.errors import UnfitData
from dagmaster.raster.analysis import footprint as module
from dagmaster.raster.analysis.footprint import Footprint, footprint, outline, union
from dagmaster.raster.cog.grid import output_grid
from dagmaster.raster.cog.write import make_cog
from dagmaster.raster.source.facts import RasterType, read_facts
from tests.raster.scenes import write

pytestmark = pytest.mark.requirement("C1")

UTM = "EPSG:32633"
UTM_GRID = Affine(30, 0, 400_000, 0, -30, 5_400_000)
EDGE = 1e-6


def rotated_square(size, *, angle=17.0, half=0.3):
    rows, columns = np.mgrid[:size, :size] - size / 2
    sin, cos = np.sin(np.radians(angle)), np.cos(np.radians(angle))
    return (np.abs(rows * cos + columns * sin) < half * size) & (np.abs(columns * cos - rows * sin) < half * size)


def polygonized(path):
    """The valid pixels as polygons in the raster's CRS, by gdal_polygonize of its mask."""
    target = path.with_suffix(".geojson")
    subprocess.run(["gdal_polygonize.py", "-q", "-mask", path, path, "-f", "GeoJSON", target], check=True)
    return shapely.unary_union([shape(feature["geometry"]) for feature in json.loads(target.read_text())["features"]])


def in_crs(ground, crs):
    return shapely.transform(
        shape(ground.geometry), lambda xy: np.array(transform_points("EPSG:4326", crs, *xy.T)[:2]).T
    )


def is_well_formed(ground):
    polygon = shape(ground.geometry)
    parts = list(polygon.geoms) if hasattr(polygon, "geoms") else [polygon]
    numbers = shapely.get_coordinates(polygon)
    return (
        polygon.is_valid
        and all(part.exterior.is_ccw and not any(hole.is_ccw for hole in part.interiors) for part in parts)
        and np.abs(numbers[:, 0]).max() <= 180
        and np.abs(numbers[:, 1]).max() <= 90
        and (np.round(numbers, 7) == numbers).all()
    )


def test_a_collar_of_nodata_is_not_part_of_the_footprint(tmp_path):
    data = rotated_square(600).astype("uint8")
    path = write(tmp_path / "a.tif", data, crs=UTM, transform=UTM_GRID, nodata=0)

    ground = footprint(path)

    theirs, ours = polygonized(path), in_crs(ground, UTM)
    assert abs(ours.area - theirs.area) < theirs.length * 30
    assert ours.symmetric_difference(theirs).area < theirs.length * 30
    assert shapely.hausdorff_distance(ours.exterior, theirs.exterior) < 30
    assert shapely.get_num_coordinates(ours) < 30  # the steps along the edges of pixels are simplified
    assert is_well_formed(ground)


def test_holes_and_islands_are_kept(tmp_path):
    rows, columns = np.mgrid[:400, :400]
    data = (
        ((rows - 150) ** 2 + (columns - 150) ** 2 < 120**2) & ((rows - 150) ** 2 + (columns - 150) ** 2 > 50**2)
    ).astype("uint8")
    data[320:370, 320:370] = 1
    path = write(tmp_path / "a.tif", data, crs=UTM, transform=UTM_GRID, nodata=0)

    ground = footprint(path)

    theirs, ours = polygonized(path), in_crs(ground, UTM)
    assert ours.symmetric_difference(theirs).area < theirs.length * 30
    assert ground.geometry["type"] == "MultiPolygon"
    assert sum(len(part.interiors) for part in ours.geoms) == 1
    assert is_well_formed(ground)


def test_a_footprint_from_an_overview_is_accurate_to_a_pixel_of_it(tmp_path):
    data = rotated_square(1024).astype("uint8")
    path = write(tmp_path / "a.tif", data, crs=UTM, transform=UTM_GRID, nodata=0, overviews=(2, 4, 8))

    fine, coarse = footprint(path), footprint(path, max_pixels=130 * 130)

    theirs = polygonized(path)
    assert shapely.hausdorff_distance(in_crs(fine, UTM).exterior, theirs.exterior) < 30
    assert 30 < shapely.hausdorff_distance(in_crs(coarse, UTM).exterior, theirs.exterior) < 8 * 30 * 1.5


@pytest.mark.parametrize("how", ["mask", "alpha", "nan", "second band"])
def test_masks_alpha_nan_and_nodata_of_any_band_are_considered(tmp_path, how):
    is_data = rotated_square(300)
    data = np.full((300, 300), 9, "float32")
    options = {"crs": UTM, "transform": UTM_GRID}
    match how:
        case "mask":
            path = write(tmp_path / "a.tif", data, mask=is_data, **options)
        case "alpha":
            path = write(tmp_path / "a.tif", np.stack([data, is_data.astype("float32")]), alpha=True, **options)
        case "nan":
            path = write(tmp_path / "a.tif", np.where(is_data, data, np.nan).astype("float32"), **options)
        case _:
            path = write(
                tmp_path / "a.tif", np.stack([np.zeros_like(data), np.where(is_data, data, 0)]), nodata=0, **options
            )

    ground = in_crs(footprint(path), UTM)

    assert ground.area == pytest.approx(is_data.sum() * 900, rel=0.01)


def test_a_raster_without_data_has_no_footprint(tmp_path):
    path = write(tmp_path / "a.tif", np.zeros((100, 100), "uint8"), nodata=0)

    assert footprint(path) is None
    assert outline(path).bbox == (10.0, 49.9, 10.1, 50.0)


def test_the_footprint_of_a_full_raster_is_its_outline(tmp_path):
    path = write(
        tmp_path / "a.tif", np.ones((200, 300), "uint8"), crs=UTM, transform=Affine(25, 8, 400_000, 8, -25, 5_400_000)
    )

    ground = footprint(path)

    corners = [(0, 0), (300, 0), (300, 200), (0, 200)]
    x, y = zip(*[(25 * c + 8 * r + 400_000, 8 * c - 25 * r + 5_400_000) for c, r in corners], strict=True)
    truth = shapely.Polygon(zip(*transform_points(UTM, "EPSG:4326", x, y)[:2], strict=True))
    assert all(shape(ground.geometry).exterior.distance(Point(corner)) < EDGE for corner in truth.exterior.coords)
    assert ground == outline(path)
    assert is_well_formed(ground)


@pytest.mark.parametrize("size", [300, 1500])  # from the COG itself, and from an overview of it
@pytest.mark.parametrize("angle", [2, 20, 30, 52])
@pytest.mark.parametrize("crs", [UTM, "EPSG:4326"])
def test_the_footprint_of_a_rotated_scene_has_its_true_corners(tmp_path, crs, angle, size):
    """In a north-up COG the scene is rotated, so its edges consist of steps."""
    pixel, corner = (10, (500_000, 5_200_000)) if crs == UTM else (0.0001, (10, 50))
    turned = Affine.translation(*corner) @ Affine.rotation(angle) @ Affine.scale(pixel, -pixel)
    full = np.full((size * 4 // 5, size), 9, "uint8")
    source = write(tmp_path / "a.tif", full, crs=crs, transform=turned)
    truth = shape(outline(source).geometry)
    make_cog(source, tmp_path / "cog.tif", output_grid(read_facts(source)), raster_type=RasterType.RGB)

    ground = footprint(tmp_path / "cog.tif")

    ours = shape(ground.geometry)
    assert len(ours.exterior.coords) - 1 <= 8
    assert ours.intersection(truth).area / ours.union(truth).area >= 0.999
    assert is_well_formed(ground)


def test_pixels_that_touch_at_a_corner_are_one_piece(tmp_path):
    data = np.zeros((60, 60), "uint8")
    data[10:30, 10:30] = data[30:50, 30:50] = 1
    path = write(tmp_path / "a.tif", data, crs=UTM, transform=UTM_GRID, nodata=0)

    assert footprint(path).geometry["type"] == "Polygon"


def test_a_hole_has_its_true_size_in_a_footprint_from_an_overview(tmp_path):
    """A pixel of an overview is valid if any pixel below it is: holes shrink as islands grow."""
    is_nodata = rotated_square(1024, angle=20, half=0.2)
    path = write(
        tmp_path / "a.tif", (~is_nodata).astype("uint8"), crs=UTM, transform=UTM_GRID, nodata=0, overviews=(2, 4, 8)
    )

    (hole,) = in_crs(footprint(path, max_pixels=256 * 256), UTM).interiors

    assert shapely.Polygon(hole).area == pytest.approx(is_nodata.sum() * 900, rel=0.002)
    assert len(hole.coords) - 1 <= 8


def test_the_footprint_of_noise_is_coarse(tmp_path):
    data = np.random.default_rng(1).integers(0, 2, (1000, 1000), dtype="uint8")
    path = write(tmp_path / "a.tif", data, crs=UTM, transform=UTM_GRID, nodata=0)

    ground = footprint(path)

    assert shapely.get_num_coordinates(shape(ground.geometry)) <= module.MAX_VERTICES * 2
    assert in_crs(ground, UTM).area == pytest.approx(1000 * 1000 * 900, rel=0.02)


# Antimeridian and poles


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:4167"])
def test_degrees_beyond_180_are_split_at_the_antimeridian(tmp_path, crs):
    path = write(tmp_path / "a.tif", np.ones((100, 100), "uint8"), crs=crs, transform=Affine(0.1, 0, 175, 0, -0.1, -30))

    ground = footprint(path)

    assert ground.bbox == pytest.approx((175, -40, -175, -30), abs=1e-5)
    assert ground.geometry["type"] == "MultiPolygon"
    assert shape(ground.geometry).area == pytest.approx(100, abs=1e-4)
    assert is_well_formed(ground)


def test_a_projected_raster_over_the_antimeridian_has_a_split_footprint(tmp_path):
    path = write(
        tmp_path / "a.tif",
        np.ones((300, 300), "uint8"),
        crs="EPSG:32601",
        transform=Affine(500, 0, 200_000, 0, -500, 5_400_000),
    )

    ground = footprint(path)

    assert ground.bbox[0] == pytest.approx(178.92, abs=0.01)
    assert ground.bbox[2] == pytest.approx(-178.99, abs=0.01)
    assert shape(ground.geometry).area < 8
    assert is_well_formed(ground)


def points_of(path, number=400):
    """Random points, each with whether the raster has data there."""
    rng = np.random.default_rng(4)
    with rasterio.open(path) as dataset:
        data = dataset.read(1)
        rows, columns = rng.uniform(0, dataset.height, number), rng.uniform(0, dataset.width, number)
        x, y = dataset.xy(rows, columns, offset="ul")
        lon, lat = transform_points(dataset.crs, "EPSG:4326", x, y)[:2]
    return [
        (Point(place), bool(data[int(r), int(c)]))
        for place, r, c in zip(zip(lon, lat, strict=True), rows, columns, strict=True)
    ]


POLAR = Affine(20_000, 0, -3_000_000, 0, -20_000, 3_000_000)


def polar_scene(kind):
    rows, columns = np.mgrid[:300, :300] - 149.5
    match kind:
        case "around the pole":
            return np.ones((300, 300), "uint8")
        case "with a hole at the pole":
            return (rows**2 + columns**2 > 40**2).astype("uint8")
        case "three quarters":
            return ~((rows < 0) & (columns < 0)) * np.uint8(1)
        case "one half":
            return (columns > 0).astype("uint8")
        case "one quarter":
            return ((rows > 0) & (columns > 0)).astype("uint8")
        case _:
            return (np.abs(rows - 80) + np.abs(columns + 60) < 45).astype("uint8")


@pytest.mark.parametrize("crs", ["EPSG:3031", "EPSG:3413"])
@pytest.mark.parametrize(
    "kind",
    ["around the pole", "with a hole at the pole", "three quarters", "one half", "one quarter", "beside the pole"],
)
def test_the_footprint_of_a_polar_raster_covers_exactly_its_data(tmp_path, kind, crs):
    path = write(tmp_path / "a.tif", polar_scene(kind), crs=crs, transform=POLAR, nodata=0)

    ground = footprint(path)

    polygon = shape(ground.geometry)
    wrong = [place for place, is_data in points_of(path) if polygon.contains(place) != is_data]
    assert len(wrong) <= 6  # those within a pixel of an edge
    pole = 90 if crs == "EPSG:3413" else -90
    includes_the_pole = kind not in ("with a hole at the pole", "beside the pole")
    assert (pole in (ground.bbox[1], ground.bbox[3])) == includes_the_pole
    assert is_well_formed(ground)


def test_the_footprint_of_a_global_raster_is_the_whole_world(tmp_path):
    degrees = write(tmp_path / "a.tif", np.ones((180, 360), "uint8"), transform=Affine(1, 0, -180, 0, -1, 90))
    east_first = write(tmp_path / "b.tif", np.ones((180, 360), "uint8"), transform=Affine(1, 0, 0, 0, -1, 90))

    for path in (degrees, east_first):
        assert footprint(path).bbox == (-180, -90, 180, 90)
        assert shape(footprint(path).geometry).area == pytest.approx(360 * 180)


def test_the_footprint_of_a_full_disk_ends_at_the_edge_of_the_earth(tmp_path):
    path = write(
        tmp_path / "a.tif",
        np.ones((200, 200), "uint8"),
        crs="+proj=geos +h=35785831 +lon_0=0 +ellps=WGS84 +units=m",
        transform=Affine(55_000, 0, -5_500_000, 0, -55_000, 5_500_000),
    )

    ground = footprint(path)

    assert 70 < ground.bbox[2] < 82
    assert is_well_formed(ground)


# Union of footprints


def test_the_union_of_tiles_has_no_inner_edges(tmp_path):
    paths = [
        write(
            tmp_path / f"{column}.tif",
            np.ones((100, 100), "uint8"),
            transform=Affine(0.01, 0, 10 + 0.9 * column, 0, -0.01, 50),
        )
        for column in range(4)
    ]

    together = union([*(footprint(path) for path in paths), None])

    assert together.geometry == {
        "type": "Polygon",
        "coordinates": [[[10.0, 49.0], [13.7, 49.0], [13.7, 50.0], [10.0, 50.0], [10.0, 49.0]]],
    }
    assert union([None]) is None


def test_a_raster_without_crs_is_refused(tmp_path):
    path = write(tmp_path / "a.tif", np.ones((10, 10), "uint8"), crs=None)

    with pytest.raises(UnfitData, match="no CRS"):
        footprint(path)


def test_the_same_area_gives_the_same_text(tmp_path):
    path = write(tmp_path / "a.tif", rotated_square(300).astype("uint8"), crs=UTM, transform=UTM_GRID, nodata=0)

    assert json.dumps(footprint(path).geometry) == json.dumps(footprint(path).geometry)
    assert isinstance(footprint(path), Footprint)


GRIDS = {
    "worldwide": ("EPSG:4326", Affine(1, 0, -180, 0, -1, 90)),
    "0 to 360": ("EPSG:4326", Affine(1, 0, 0, 0, -1, 90)),
    "over the antimeridian": ("EPSG:4326", Affine(0.05, 0, 171, 0, -0.05, 10)),
    "UTM": (UTM, UTM_GRID),
}


def ragged(seed, *, share, height=180, width=360):
    """Like land and sea: irregular at every scale, with islands and lakes."""
    rng = np.random.default_rng(seed)
    heights = sum(
        np.kron(rng.normal(size=(height // size + 1, width // size + 1)), np.ones((size, size)))[:height, :width] * size
        for size in (2, 5, 15, 40)
    )
    return heights > np.quantile(heights, 1 - share)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("seed", "share"), [(1, 0.66), (2, 0.3), (3, 0.5), (4, 0.05), (5, 0.9)])
def test_the_footprint_covers_all_valid_pixels_and_hardly_more(tmp_path, grid, seed, share):
    """At most a tenth of a pixel per side between valid and nodata pixels: corners are cut, and pinched ones joined."""
    crs, transform = GRIDS[grid]
    valid = ragged(seed, share=share)
    path = write(tmp_path / "a.tif", np.where(valid, 7, 0).astype("uint8"), crs=crs, transform=transform, nodata=0)

    ground = footprint(path)

    rows, columns = np.nonzero(valid)
    x, y = transform @ (columns + 0.5, rows + 0.5)
    longitudes, latitudes = transform_points(crs, "EPSG:4326", x, y)[:2]
    longitudes = (np.array(longitudes) + 180) % 360 - 180
    polygon = shape(ground.geometry)
    shapely.prepare(polygon)
    assert shapely.contains_xy(polygon, longitudes, latitudes).all()
    area = in_crs(ground, crs).area / abs(transform.a * transform.e)
    edges = (valid[1:] != valid[:-1]).sum() + (valid[:, 1:] != valid[:, :-1]).sum()
    assert is_well_formed(ground)
    assert valid.sum() * 0.99 <= area <= valid.sum() + 0.1 * edges
    assert shapely.get_num_coordinates(polygon) <= module.MAX_VERTICES


@pytest.mark.parametrize("seed", range(4))
def test_an_outline_with_too_many_corners_still_covers_all_valid_pixels(tmp_path, seed):
    valid = np.random.default_rng(seed).random((180, 360)) < (0.02, 0.3, 0.65, 0.95)[seed]
    transform = GRIDS["worldwide"][1]
    path = write(tmp_path / "a.tif", np.where(valid, 7, 0).astype("uint8"), transform=transform, nodata=0)

    polygon = shape(footprint(path).geometry)

    rows, columns = np.nonzero(valid)
    x, y = transform @ (columns + 0.5, rows + 0.5)
    shapely.prepare(polygon)
    assert shapely.contains_xy(polygon, x, y).all()
    assert shapely.get_num_coordinates(polygon) <= module.MAX_VERTICES
