"""Platforms, references and asset ids."""

import psycopg
import pytest

from dagmaster.assets.identity import RegisteredPlatform, asset_id_of, check_references
from dagmaster.errors import Conflict, InvalidRequest
from tests.assets.platforms import SHIPPED

pytestmark = pytest.mark.requirement("A1", "A2")

PLATFORMS = {platform.platform_id: platform for platform in SHIPPED}
DDH = PLATFORMS["ddh"]
REFS = {"dataset_id": "floods", "resource_id": "r1", "version_id": "2024"}

# Computed with: printf '%s' 'ddh|{"dataset_id": "floods", "resource_id": "r1"}' | sha256sum | cut -c1-32
# In JSON, ü is \u00fc, 地 is \u5730 and 🗺 is \ud83d\uddfa.
VECTORS = [
    ("ddh", {"dataset_id": "floods", "resource_id": "r1"}, "461328a8a54dee1e9a75fcbfc496f249"),
    ("ddh", {"resource_id": "r1", "dataset_id": "floods"}, "461328a8a54dee1e9a75fcbfc496f249"),
    ("ddh", {"dataset_id": "über", "resource_id": "r1"}, "4e5f91cb8521b49d54962bd9766ae7a7"),
    ("ddh", {"dataset_id": "地図 🗺", "resource_id": "r1"}, "a54209504f8c15e04dd682bf61dddc39"),
    ("ddh", {"dataset_id": 'a"b\\c', "resource_id": "r1"}, "8a02a57edc8eb82a6c4825974e6c4259"),
    ("arcgis", {"item_id": "3a5f", "layer_index": "0"}, "2011f31c8bb6a2fe411399dbef441c4f"),
    ("geonode", {"uuid": "7b0e3a4c-0000-4000-8000-000000000001"}, "55adafa0c144b7b126562fba734ad42c"),
    ("local", {"dataset": "dem"}, "46512876f206765f1054ce33a84f076c"),
    ("legacy", {"dataset": "dem"}, "ecd19c91b82a3399906fe202da7bd02b"),
]


@pytest.mark.parametrize(("platform", "identity", "expected"), VECTORS)
def test_asset_ids_never_change(platform, identity, expected):
    assert asset_id_of(platform, identity) == expected


def test_the_version_is_not_part_of_the_asset_id():
    ids = {check_references(DDH, {**REFS, "version_id": version}).asset_id for version in ("2024", "2025", "ü")}

    assert ids == {"461328a8a54dee1e9a75fcbfc496f249"}
    assert check_references(DDH, REFS).version_label == "2024"


def test_different_platforms_or_references_give_different_asset_ids():
    refs = {"dataset": "a"}

    assert len({asset_id_of("local", refs), asset_id_of("legacy", refs), asset_id_of("local", {"dataset": "b"})}) == 3


@pytest.mark.parametrize(
    ("refs", "problem"),
    [
        ({"dataset_id": "floods", "resource_id": "r1"}, "'version_id' is missing"),
        ({**REFS, "colour": "red"}, "'colour' is not a reference of this platform"),
        ({**REFS, "dataset_id": " "}, "'dataset_id' is empty"),
        ({**REFS, "dataset_id": "a\0"}, "cannot be printed"),
        ({**REFS, "dataset_id": "\ud800"}, "cannot be printed"),
        ({**REFS, "dataset_id": "a "}, "spaces at its ends"),
        ({**REFS, "dataset_id": "a" * 201}, "more than 200"),
        ({**REFS, "dataset_id": 7}, "must be a string"),
    ],
)
def test_references_that_do_not_match_their_platform_are_refused(refs, problem):
    with pytest.raises(InvalidRequest, match=problem) as raised:
        check_references(DDH, refs)

    assert raised.value.code == "refs.invalid"


def test_all_mistakes_in_references_are_reported_at_once():
    with pytest.raises(InvalidRequest) as raised:
        check_references(DDH, {"dataset_id": "", "colour": "red"})

    assert len(raised.value.facts["problems"]) == 4


def test_submissions_for_an_inactive_platform_are_refused():
    with pytest.raises(Conflict) as raised:
        check_references(RegisteredPlatform("old", "Old", ("id",), is_active=False), {"id": "1"})

    assert raised.value.code == "platform.inactive"


def test_the_deployed_schema_has_the_shipped_platforms(shared_database):
    columns = "platform_id, display_name, required_refs, optional_refs, version_ref, is_active"
    with psycopg.connect(shared_database) as connection:
        rows = connection.execute(f"SELECT {columns} FROM dagapp.platforms").fetchall()

    platforms = {
        RegisteredPlatform(*(tuple(value) if isinstance(value, list) else value for value in row)) for row in rows
    }

    assert platforms == set(SHIPPED)


def test_the_shipped_platforms_identify_assets_without_a_version():
    assert {p.platform_id: p.identity_refs for p in SHIPPED} == {
        "ddh": ("dataset_id", "resource_id"),
        "arcgis": ("item_id", "layer_index"),
        "geonode": ("uuid",),
        "local": ("dataset",),
        "legacy": ("dataset",),
    }
