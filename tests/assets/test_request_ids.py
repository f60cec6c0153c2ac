"""The id under which a request is stored if another platform has already used its id."""

import pytest

from dagmaster.assets.request_ids import PREFIX, possible_ids, substitute_id

pytestmark = pytest.mark.requirement("G3")


def test_each_platform_has_a_different_substitute_for_each_request_id():
    pairs = [(request_id, platform_id) for request_id in ("order-7", "order-8") for platform_id in ("a", "b", "c")]

    substitutes = {substitute_id(*pair) for pair in pairs}

    assert len(substitutes) == len(pairs)
    assert all(each.startswith(PREFIX) and len(each) <= 64 for each in substitutes)


def test_a_request_is_looked_up_by_its_id_first_and_then_by_the_substitute_of_each_platform():
    assert possible_ids("order-7", ["a", "b"]) == [
        "order-7",
        substitute_id("order-7", "a"),
        substitute_id("order-7", "b"),
    ]
