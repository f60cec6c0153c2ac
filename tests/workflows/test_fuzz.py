"""For any input, the loader and the templates return a value or a refusal, and never crash."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagmaster.errors import InvalidWorkflow
from dagmaster.workflows.document import DocumentLimits, Unreadable, parse
from dagmaster.workflows.draw import mermaid
from dagmaster.workflows.expressions import (
    TemplateContext,
    TemplateFailed,
    TemplateInvalid,
    compile_branch,
    compile_condition,
    compile_expression,
    compile_value,
)
from dagmaster.workflows.graph import build
from dagmaster.workflows.load import read, read_all, shipped

from .builders import HANDLERS, QUEUES

BODIES = [workflow.body() for workflow in read_all(shipped()).workflows.values()]
NAMES = sorted({name for body in BODIES for name in body["nodes"]})
WORDS = st.sampled_from(
    [
        *("start", "end", "task", "conditional", "fan_out", "fan_in", "type", "next", "depends_on", "all_of", "any_of"),
        *("branches", "condition", "condition_field", "default", "on_true", "source", "results_of", "retry", "params"),
        *("{{ item }}", "{{ nodes.measure.output.x }} > 1", "{{ inputs.count", "< 3", "10%", "", "a__1", "echo", "x y"),
    ]
)
PIECES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.sampled_from(NAMES) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)


def holders(value: Any) -> list[Any]:
    """All mappings and lists in a value that are not empty."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return ([value] if inner else []) + [holder for item in inner for holder in holders(item)]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A shipped workflow with some values replaced, removed or added."""
    body = copy.deepcopy(draw(st.sampled_from(BODIES)))
    for _ in range(draw(st.integers(1, 3))):
        places = holders(body)
        if not places:
            break
        holder = draw(st.sampled_from(places))
        key = draw(st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder))))
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                holder[key] = draw(PIECES)
            case "remove":
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[draw(WORDS | st.sampled_from(NAMES))] = draw(PIECES)
    return json.dumps(body)


def answer(call: Callable[[], Any]) -> Any:
    """The result of the call, or its refusal."""
    try:
        return call()
    except (InvalidWorkflow, Unreadable, TemplateInvalid, TemplateFailed) as refusal:
        return refusal


@pytest.mark.requirement("W3")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=mutated())
def test_a_mutated_workflow_is_refused_or_can_be_built(text):
    workflow = answer(lambda: read(text, "mutated.yaml", handlers=HANDLERS, queues=QUEUES))

    if isinstance(workflow, InvalidWorkflow):
        assert workflow.problems
        assert all(problem.message for problem in workflow.problems)
    else:
        graph = build(workflow)
        assert set(graph.order) == set(workflow.nodes)
        assert mermaid(graph)


@pytest.mark.requirement("W3")
@given(text=st.text(alphabet="abc:-[]{}?&*!|>'\"#%@`,\n \t~<\\0.", max_size=60) | st.binary(max_size=40))
def test_any_text_is_a_document_or_is_refused(text):
    document = answer(lambda: parse(text, DocumentLimits(1000, 10, 100))[0])

    assert document.problems if isinstance(document, Unreadable) else document.place(()) != (0, 0)


TOKENS = st.sampled_from(
    [
        *("{{", "}}", "{%", "%}", "(", ")", "[", "]", "{", "}", ",", ":", ".", "|", "~", "+", "-", "*", "**", "/", "%"),
        *("<", "==", "in", "not", "and", "or", "is", "if", "else", "'a'", '"%s"', "1", "2.5", "true", "none", "'"),
        *("inputs", "item", "index", "nodes", "output", "a", "x", "_y", "default", "join", "length", "map", "sort"),
        *("attribute=", "=", "set", "for", "raw", "endraw", "defined", "value"),
    ]
)
CONTEXT = TemplateContext(inputs={"a": [1, {"x": "y"}]}, outputs={"x": {"a": 1}}, item={"a": None}, index=3, value="v")


@pytest.mark.requirement("W5")
@settings(max_examples=500, deadline=None)
@given(
    tokens=st.lists(TOKENS, max_size=12),
    way=st.sampled_from([compile_value, compile_expression, compile_condition, compile_branch]),
    wrap=st.sampled_from(["%s", "{{ %s }}", "{{ inputs.a | %s }}", "< %s", "{{ index }} %s"]),
)
def test_any_template_renders_json_or_is_refused(tokens, way, wrap):
    value = answer(lambda: way(wrap.replace("%s", " ".join(tokens))).render(CONTEXT))

    if isinstance(value, TemplateInvalid | TemplateFailed):
        assert value.message
    else:
        json.dumps(value, allow_nan=False)
