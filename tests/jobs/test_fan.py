"""How a source becomes children, and how children's results become one output."""

from fractions import Fraction

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.jobs.fan import ChildResult, SumOutOfRange, aggregate, batch_count, fan_out_output, size_bytes, tolerated
from dagmaster.jobs.payload import INLINE_BYTES
from dagmaster.workflows.model import Aggregation, FanOutNode


def children(*outputs, failed=()):
    return [
        ChildResult(
            i,
            f"tile__{i}",
            "failed" if i in failed else "completed",
            None if i in failed else output,
            "broke" if i in failed else None,
        )
        for i, output in enumerate(outputs)
    ]


def a_fan_out(tolerate=0):
    return FanOutNode.model_validate(
        {"type": "fan_out", "source": [1], "task": {"handler": "echo"}, "tolerate": tolerate}
    )


@pytest.mark.requirement("W7")
@pytest.mark.parametrize(
    ("items", "size", "count"), [(0, None, 0), (7, None, 7), (0, 3, 0), (1, 3, 1), (6, 3, 2), (7, 3, 3), (5, 10, 1)]
)
def test_batches_cover_every_item(items, size, count):
    assert batch_count(items, size) == count


@pytest.mark.requirement("W7")
@pytest.mark.parametrize(
    ("tolerate", "total", "allowed"),
    [
        (0, 10, 0),
        (3, 10, 3),
        (3, 1, 3),
        (0.1, 10, 1),
        (0.1, 19, 1),
        (0.5, 1, 0),
        (1.0, 4, 4),
        ("25%", 8, 2),
        (0.5, 0, 0),
    ],
)
def test_a_number_counts_children_and_a_share_is_rounded_down(tolerate, total, allowed):
    assert tolerated(a_fan_out(tolerate), total) == allowed


@pytest.mark.requirement("W8")
@pytest.mark.parametrize(
    ("mode", "outputs", "result"),
    [
        ("collect", [{"a": 1}, None, [2]], {"results": [{"a": 1}, None, [2]], "count": 3}),
        ("collect", [], {"results": [], "count": 0}),
        ("concat", [[1, 2], [], [[3]], {"a": 4}, None], {"results": [1, 2, [3], {"a": 4}, None], "count": 5}),
        ("concat", [], {"results": [], "count": 0}),
        ("sum", [1, {"a": [2, {"b": 3.5}]}, "7", True, None], {"total": 6.5, "count": 5}),
        ("sum", [], {"total": 0, "count": 0}),
        ("first", ["x", "y"], {"result": "x", "count": 2}),
        ("last", ["x", "y"], {"result": "y", "count": 2}),
        ("first", [], {"result": None, "count": 0}),
        ("last", [], {"result": None, "count": 0}),
    ],
)
def test_children_become_one_output_in_index_order(mode, outputs, result):
    assert aggregate(Aggregation(mode), children(*outputs)) == result


@pytest.mark.requirement("W8")
def test_tolerated_failures_are_listed_but_not_counted():
    gathered = aggregate(Aggregation.COLLECT, children("a", "b", "c", failed={1}))

    assert gathered == {
        "results": ["a", "c"],
        "count": 2,
        "failed": [{"index": 1, "node_id": "tile__1", "error_message": "broke"}],
    }


@pytest.mark.requirement("W8")
def test_first_and_last_are_taken_from_completed_children():
    given = children("a", "b", "c", failed={0, 2})

    assert aggregate(Aggregation.FIRST, given)["result"] == "b"
    assert aggregate(Aggregation.LAST, given)["result"] == "b"


@pytest.mark.requirement("W7")
def test_a_fan_out_names_its_children_while_the_list_is_small():
    assert fan_out_output("tile", 2) == {"fan_out_count": 2, "child_node_ids": ["tile__0", "tile__1"]}
    assert fan_out_output("tile", 100_000) == {"fan_out_count": 100_000}


@pytest.mark.requirement("E18")
@pytest.mark.parametrize("name", ["t", "a" * 64])
def test_the_output_of_a_fan_out_never_exceeds_the_inline_limit(name):
    assert all(size_bytes(fan_out_output(name, total)) <= INLINE_BYTES for total in (3000, 17_000, 25_000, 100_000))


NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.requirement("W8")
@given(st.lists(NUMBERS, max_size=6))
def test_a_sum_is_exact_and_rounded_once_or_refused(numbers):
    exact = sum((Fraction(repr(number)) for number in numbers), Fraction(0))

    try:
        total = aggregate(Aggregation.SUM, children(*numbers))["total"]
    except SumOutOfRange:
        assert not -(2**63) <= exact < 2**64
        return
    assert total == (exact if isinstance(total, int) else float(exact))
    assert orjson.loads(orjson.dumps(total)) == total
