"""The meter counts all work of templates, and comparisons have the same results as in Python."""

import operator
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.workflows.expressions import TemplateContext, TemplateFailed, compile_expression, compile_value
from dagmaster.workflows.meter import Meter, OutOfTime

NUMBERS = list(range(20_000))
KEYED = [{"k": n} for n in NUMBERS]
PAIRS, SAME_PAIRS = ([[n, [n]] for n in range(100_000)] for _ in range(2))
LONG = [[0] * 100 + [-n] for n in range(20_000)]
EXPENSIVE = [
    ("a | selectattr('k', 'in', b) | list", KEYED, list(range(20_000, 40_000))),
    ("a | rejectattr('k', 'in', b) | list", KEYED, [f"text {n}" for n in NUMBERS]),
    ("a | selectattr('k', 'equalto', b) | list", [{"k": LONG} for _ in range(10_000)], [*LONG]),
    ("a | selectattr('k', 'in', b) | list", [{"k": [n, 1]} for n in NUMBERS], [[n, 2] for n in NUMBERS]),
    ("[" + "a, " * 100 + "] == [" + "b, " * 100 + "]", PAIRS, SAME_PAIRS),
    ("[" + "a, " * 100 + "] < [" + "b, " * 100 + "]", PAIRS, SAME_PAIRS),
    ("[a, 1] in [" + "[b, 0], " * 100 + "]", PAIRS, SAME_PAIRS),
    ("[a, 1] not in [" + "[b, 0], " * 100 + "]", PAIRS, SAME_PAIRS),
    ("[" + "a, " * 100 + "] is eq([" + "b, " * 100 + "])", PAIRS, SAME_PAIRS),
    ("a" + " | sort" * 25, LONG, []),
    ("[" + "a, " * 100 + "] | max", LONG, []),
    ("[" + "a, " * 100 + "] | unique", LONG, []),
    ("[" + "a, " * 100 + "] | sort", LONG, []),
    ("a | map(attribute='k')" + " | reverse" * 28, [{"k": n} for n in range(100_000)], []),
]


@pytest.mark.requirement("W5", "W11")
@pytest.mark.parametrize(("text", "a", "b"), EXPENSIVE, ids=[text[:40] for text, _, _ in EXPENSIVE])
def test_no_operation_takes_much_longer_than_the_meter_allows(text, a, b):
    compiled = compile_expression(re.sub(r"(?<![\w'])([ab])(?=[ ,)])", r"inputs.\1", text))
    context = TemplateContext(inputs={"a": a, "b": b})

    started = time.thread_time()
    with pytest.raises(OutOfTime):
        compiled.render(context, Meter(0.05))

    assert time.thread_time() - started < 0.6


TEXT = "a" * 65_000
MANY = {
    "filters of texts": ("{{ inputs.text" + " | title" * 29 + " | length }}", 100),
    "replaced texts": (
        "{{ inputs.text" + " | replace('a' * 99, 'b' * 99) | replace('b', 'a')" * 14 + " | length }}",
        100,
    ),
    "parts of texts and joined parts": ("{{ inputs.text" + " | split('a') | join('a')" * 14 + " | length }}", 20),
    "slices": ("{{ [" + "inputs.numbers[::1], " * 120 + "] | length }}", 10),
    "slices of texts": ("{{ [" + "inputs.long[1:], " * 120 + "] | length }}", 10),
    "keys": ("{{ [" + "inputs.named | keys | length, " * 14 + "] }}", 100),
    "long texts in a list": ("{{ inputs.rows | selectattr('k', 'in', inputs.texts) | length }}", 10),
    "small templates": ("{{ 1 + 1 }}", 600),
}


@pytest.mark.requirement("W5", "W11")
@pytest.mark.parametrize("name", MANY)
def test_the_templates_of_one_node_share_its_time_limit(name):
    template, count = MANY[name]
    compiled = compile_value([template] * count)
    texts = ["a" * 10_000 + f"{n:04}" for n in range(500)]
    context = TemplateContext(
        inputs={
            "text": TEXT,
            "long": TEXT * 30,
            "numbers": list(range(500_000)),
            "named": {f"k{n}": n for n in range(100_000)},
            "texts": texts,
            "rows": [{"k": text} for text in texts],
        }
    )

    started = time.thread_time()
    with pytest.raises(OutOfTime):
        compiled.render(context, Meter(0.005))

    assert time.thread_time() - started < 0.3


@pytest.mark.requirement("W5")
@given(st.lists(st.integers(), max_size=8) | st.text("abc", max_size=8), *[st.none() | st.integers(-9, 9)] * 3)
def test_slices_have_the_same_result_as_in_python(value, start, stop, step):
    bounds = ":".join("" if bound is None else str(bound) for bound in (start, stop, step))
    try:
        expected = value[start:stop:step]
    except ValueError:
        expected = "refused"

    try:
        part = compile_expression(f"inputs.a[{bounds}]").render(TemplateContext(inputs={"a": value}))
    except TemplateFailed:
        part = "refused"

    assert part == expected


def test_a_template_without_a_meter_has_a_limit_too():
    compiled = compile_expression("inputs.a | selectattr('k', 'in', inputs.b) | length")

    with pytest.raises(TemplateFailed, match="takes longer than 2 s of CPU time") as failed:
        compiled.render(TemplateContext(inputs={"a": KEYED, "b": list(range(20_000, 40_000))}))

    assert failed.value.code == "template.too-slow"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("ab", max_size=3),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text("ab", max_size=2), parts, max_size=3),
    max_leaves=6,
)
SIGNS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda left, right: left in right,
    "not in": lambda left, right: left not in right,
}
CHAINS = {(one, two): compile_expression(f"inputs.a {one} inputs.b {two} inputs.c") for one in SIGNS for two in SIGNS}


@pytest.mark.requirement("W5", "W11")
@given(st.sampled_from(sorted(CHAINS)), VALUES, VALUES, VALUES)
def test_comparisons_have_the_same_result_as_in_python(signs, a, b, c):
    one, two = signs
    try:
        expected = SIGNS[one](a, b) and SIGNS[two](b, c)
    except TypeError:
        expected = "refused"

    try:
        value = CHAINS[signs].render(TemplateContext(inputs={"a": a, "b": b, "c": c}))
    except TemplateFailed:
        value = "refused"

    assert value == expected
