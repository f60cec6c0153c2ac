"""Impossible options are refused before anything is written, and the options of an edition are stored with it."""

import pytest

from dagmaster.bbox import BBox
from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.handlers.raster.options import (
    Options,
    advice_on,
    require_possible,
)
from dagmaster.handlers.raster.recipe import claim, recipe_of, why_taken
from dagmaster.handlers.registry import installed
from dagmaster.raster.source.facts import BandFacts, RasterFacts, RasterType
from dagmaster.settings import Settings
from dagmaster.storage.location import Edition, Zone
from dagmaster.storage.zones import open_storage
from dagmaster.workflows.load import read, shipped
from dagmaster.workflows.raster import LARGE_RASTER, RASTER_COLLECTION, RASTER_INGEST, tile_limit_of

pytestmark = pytest.mark.requirement("R6")

PICTURE = tuple(BandFacts("uint8", color) for color in ("red", "green", "blue"))
HEIGHTS = (BandFacts("float32", "gray"),)


def facts(bands=PICTURE, *, crs="EPSG:32632", at=(10, 0, 5e5, 0, -10, 5.2e6), box=(9.0, 46.9, 9.1, 47.0), side=1000):
    return RasterFacts("a.tif", "GTiff", side, side, bands, crs, at, (0, 0, 1, 1), BBox(*box), size_bytes=77)


POLAR = facts(crs="EPSG:3413", at=(500, 0, -750_000, 0, -500, 750_000), box=(-180.0, 80.2, 180.0, 90.0), side=3000)
AT_THE_POLE = facts(crs="EPSG:3413", at=(500, 0, -250_000, 0, -500, 250_000), box=(-180.0, 86.7, 180.0, 90.0))


@pytest.mark.parametrize(
    ("options", "bands", "field"),
    [
        ({"output_tier": "visualization"}, HEIGHTS, "output_tier"),
        ({"output_tier": "finest"}, PICTURE, "output_tier"),
        ({"jpeg_quality": 0}, PICTURE, "jpeg_quality"),
        ({"tile_size": 0}, PICTURE, "tile_size"),
        ({"tile_size": 1000}, PICTURE, "tile_size"),
        ({"overlap": -512}, PICTURE, "overlap"),
        ({"overlap": 100}, PICTURE, "overlap"),
        ({"overlap": 1024, "tile_size": 1024}, PICTURE, "overlap"),
        ({"target_crs": "EPSG:0"}, PICTURE, "target_crs"),
        ({"target_crs": "EPSG:2193"}, PICTURE, "target_crs"),
        ({"resolution": 0.0}, PICTURE, "resolution"),
        ({"resolution": -1.0}, PICTURE, "resolution"),
        ({"resolution": 1e-12}, PICTURE, "target_crs"),
        ({"overview_level": 11}, PICTURE, "overview_level"),
        ({"band_names": ["a"]}, PICTURE, "band_names"),
        ({"band_names": ["a", "b", "a"]}, PICTURE, "band_names"),
    ],
)
def test_the_error_for_an_impossible_option_has_its_name_and_advice(options, bands, field):
    with pytest.raises(InvalidRequest) as refused:
        require_possible(Options(**options), facts(bands), RasterType.UNKNOWN)

    assert refused.value.facts["fields"] == [field]
    assert refused.value.message.startswith(f"{field}=")
    assert refused.value.hint


def test_all_impossible_options_are_reported_together():
    with pytest.raises(InvalidRequest) as refused:
        require_possible(Options(output_tier="finest", tile_size=7, target_crs="no"), facts(), RasterType.RGB)

    assert refused.value.facts["fields"] == ["tile_size", "target_crs", "output_tier"]
    assert refused.value.message.count("is not possible") == 3


@pytest.mark.parametrize("bands", [PICTURE, (*PICTURE, BandFacts("uint8", "alpha")), (*PICTURE, BandFacts("uint8"))])
def test_possible_options_give_a_grid(bands):
    kind = RasterType.RGBA if len(bands) == 4 else RasterType.RGB
    wanted = Options(output_tier="visualization", tile_size=1024, overlap=512, band_names=list("abcd")[: len(bands)])

    assert require_possible(wanted, facts(bands), kind).crs == "EPSG:4326"


def test_a_band_wrongly_marked_as_alpha_is_not_treated_as_alpha():
    bands = (*PICTURE, BandFacts("uint8", "alpha"))

    with pytest.raises(InvalidRequest, match="the fourth band is not alpha"):
        require_possible(Options(output_tier="visualization"), facts(bands), RasterType.MULTISPECTRAL, unset_alpha=True)


def test_a_dataset_across_the_antimeridian_must_be_tiled():
    across = facts(crs="EPSG:4326", at=(0.01, 0, 175, 0, -0.01, -10), box=(175.0, -20.0, -175.0, -10.0))

    with pytest.raises(InvalidRequest, match="antimeridian"):
        require_possible(Options(), across, RasterType.RGB)
    assert require_possible(Options(tile_above_mb=500), across, RasterType.RGB)
    assert Options(tile_above_mb=500).is_tiled(across)


def advised(options, of):
    grid = require_possible(options, of, RasterType.RGB)
    return {finding.code: finding for finding in advice_on(options, of, grid)}


def test_a_warning_for_polar_data_in_degrees_advises_a_polar_crs():
    findings = advised(Options(), POLAR)

    assert set(findings) == {"raster.polar", "raster.beyond-maps"}
    assert findings["raster.polar"].advice == "to keep its detail, pass target_crs=EPSG:3413"
    assert set(advised(Options(target_crs="EPSG:3413"), POLAR)) == {"raster.beyond-maps"}
    assert set(advised(Options(resolution=0.001), POLAR)) == {"raster.beyond-maps"}, (
        "no warning if the resolution was chosen"
    )
    assert advised(Options(), facts()) == {}


def test_data_around_a_pole_is_refused_in_degrees_if_most_detail_would_be_lost():
    with pytest.raises(InvalidRequest, match="39 times coarser") as refused:
        require_possible(Options(), AT_THE_POLE, RasterType.RGB)

    assert refused.value.code == "raster.too-coarse"
    assert "target_crs=EPSG:3413" in refused.value.hint
    require_possible(Options(target_crs="EPSG:3413"), AT_THE_POLE, RasterType.RGB)


class TestEdition:
    @pytest.fixture
    def storage(self, tmp_path):
        return open_storage(Settings(STORAGE_FOLDER=str(tmp_path)))

    def recipe(self, **options):
        return recipe_of(Options(**options), [facts()], RasterType.RGB, None)

    def make(self, storage, edition):
        storage.put(storage.location(edition.cog("a.tif"), zone=Zone.SILVER), b"x")

    def test_an_edition_can_be_written_again_only_with_the_same_options(self, storage):
        edition = Edition("scene")
        claim(storage, edition, self.recipe())
        self.make(storage, edition)
        claim(storage, edition, self.recipe())

        with pytest.raises(UnfitData) as refused:
            claim(storage, edition, self.recipe(output_tier="archive", resolution=2.0))

        assert refused.value.message.endswith("output_tier was analysis, not archive, resolution was not set, not 2.0")
        assert refused.value.hint == "submit it again: that makes a new revision"
        claim(storage, Edition("scene", 0, 2), self.recipe(output_tier="archive"))

    def test_the_options_of_a_job_without_outputs_can_be_replaced(self, storage):
        edition = Edition("scene")
        claim(storage, edition, self.recipe(resolution=3.0))
        claim(storage, edition, self.recipe())
        self.make(storage, edition)

        assert why_taken(storage, edition, self.recipe()) is None
        assert "resolution was not set, not 3.0" in why_taken(storage, edition, self.recipe(resolution=3.0))

    def test_options_that_do_not_change_the_files_are_not_in_the_recipe(self):
        assert self.recipe(overview_level=4, band_names=["a"], tile_size=512) == self.recipe()
        assert self.recipe(jpeg_quality=70) == self.recipe()
        one, other = (self.recipe(output_tier="visualization", jpeg_quality=quality) for quality in (70, 80))
        assert one != other


@pytest.mark.parametrize("submitted", [{}, {"tile_above_mb": 20}], ids=["default", "submitted"])
@pytest.mark.parametrize("workflow_id", [RASTER_INGEST, LARGE_RASTER, RASTER_COLLECTION])
def test_the_tile_limit_of_a_workflow_is_the_one_that_its_first_task_gets(workflow_id: str, submitted: dict):
    (file,) = [file for file in shipped() if file.name == f"{workflow_id}.yaml"]
    workflow = read(file.read_bytes(), file.name, handlers=installed())
    inputs = {name: declared.default for name, declared in workflow.inputs.items()} | submitted

    limit_mb = workflow.nodes["validate"].params["options"].get("tile_above_mb")
    if limit_mb == "{{ inputs.tile_above_mb }}":
        limit_mb = inputs["tile_above_mb"]

    assert limit_mb == tile_limit_of(workflow_id, submitted)
