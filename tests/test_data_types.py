"""Names of data types of pixels."""

import pytest

from dagmaster.data_types import data_type_name


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("uint8", "uint8"), ("float32", "float32"), ("complex_int16", "cint16"), ("complex128", "cfloat64")],
)
def test_stac_has_its_own_names_for_complex_numbers(dtype, name):
    assert data_type_name(dtype) == name


def test_a_type_that_stac_does_not_have_is_other():
    assert data_type_name("bool") == "other"
