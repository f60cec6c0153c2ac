"""The rule for dataset ids."""

import pytest

from dagmaster.dataset_ids import MAX_ID_LENGTH, dataset_id_from, is_reserved, require_dataset_id
from dagmaster.errors import InvalidRequest


@pytest.mark.parametrize("text", ["a", "dem-2024", "a.b_c", "a" * MAX_ID_LENGTH])
def test_ids_of_lower_case_letters_digits_and_separators_are_valid(text):
    require_dataset_id(text)
    assert dataset_id_from(text) == text


@pytest.mark.parametrize("text", ["", "-a", "a-", "Two Words", "A", "a/b", "é", "a" * (MAX_ID_LENGTH + 1)])
def test_other_ids_are_refused_with_the_rule(text):
    with pytest.raises(InvalidRequest, match="is not a valid dataset id") as refused:
        require_dataset_id(text, code="stac.dataset-id")

    assert refused.value.code == "stac.dataset-id"
    assert "lower-case letters and digits" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("text", "dataset_id"),
    [("DEM Wellington (2024)", "dem-wellington-2024"), ("..Über..", "uber"), ("x" * 300, "x" * 100)],
)
def test_an_id_is_derived_from_a_title(text, dataset_id):
    assert dataset_id_from(text) == dataset_id
    require_dataset_id(dataset_id)


def test_a_title_without_a_letter_or_digit_gives_no_id():
    with pytest.raises(InvalidRequest, match="no dataset id can be made"):
        dataset_id_from("???")


@pytest.mark.parametrize(
    ("name", "is_taken"),
    [
        ("0123456789abcdef0123456789abcdef", True),
        ("job-01890000-0000-7000-8000-000000000001", True),
        ("job-2024", False),
        ("0123456789abcdef0123456789abcde", False),
        ("dem", False),
    ],
)
def test_ids_of_assets_and_of_jobs_are_reserved(name, is_taken):
    assert is_reserved(name) is is_taken
