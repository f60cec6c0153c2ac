"""Templates: the values that they render, and the expressions that are refused."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.errors import InvalidRequest
from dagmaster.workflows.expressions import (
    TemplateContext,
    TemplateFailed,
    TemplateInvalid,
    _rendering,
    compile_branch,
    compile_condition,
    compile_expression,
    compile_value,
)

FILES = [{"name": "b", "size": 2}, {"name": "a", "size": 1}]
CONTEXT = TemplateContext(
    inputs={"name": "dem", "sizes": [5, 20, 12], "flag": False, "zero": 0, "nothing": None, "text": "false"},
    outputs={
        "validate": {"file_size_mb": 120, "items": [1, 2], "_id": "x", "count": 7, "path": "a/b/c.tif"},
        "my-node": {"x": 1},
        "files": FILES,
    },
    job={"job_id": "j1"},
    item={"items": "the key", "a": {"b": [10, 20]}, "values": 3},
    index=4,
)


def rendered(value: Any, context: TemplateContext = CONTEXT) -> Any:
    return compile_value(value).render(context)


@pytest.mark.requirement("W5")
@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ inputs.sizes }}", [5, 20, 12]),
        ("{{ nodes.validate.output }}", CONTEXT.names["nodes"]["validate"]),
        ("{{ nodes.validate.output.file_size_mb }}", 120),
        ("{{ inputs.flag }}", False),
        ("{{ inputs.nothing }}", None),
        ("  {{ index }}\n", 4),
        ("{{ nodes['my-node'].output.x }}", 1),
        ("{{ item.a.b[1] }}", 20),
        ("{{ item.a.b[-1] }}", 20),
        ("{{ item.a.b.0 }}", 10),
        ("{{ index + 1 }}", 5),
        ("{{ index / 2 }}", 2.0),
        ("{{ [index, (1, 2)] }}", [4, [1, 2]]),
        ("{{ {'a': index} }}", {"a": 4}),
        ("{{ 'x' if inputs.flag else 'y' }}", "y"),
        ("{{ inputs.sizes[1:] + [1] }}", [20, 12, 1]),
    ],
)
def test_an_expression_that_is_the_whole_value_keeps_its_type(template, value):
    assert rendered(template) == value
    assert type(rendered(template)) is type(value)


@pytest.mark.requirement("W5")
def test_a_value_that_is_passed_on_is_the_same_object():
    assert rendered("{{ inputs.sizes }}") is CONTEXT.names["inputs"]["sizes"]


@pytest.mark.requirement("W5")
@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("chunk {{ index }}", "chunk 4"),
        ("{{ inputs.name }}{{ index }}", "dem4"),
        ("{{ inputs.name }}/{{ item.a.b[0] }}.tif\n", "dem/10.tif\n"),
        ("{% raw %}{{ not a template }}{% endraw %}", "{{ not a template }}"),
        ("{{ 'n' ~ index ~ inputs.flag }}", "n4False"),
        ("{{ '%05d' % index }}", "00004"),
        ("{{ '%s-%.1f' | format(inputs.name, 1.25) }}", "dem-1.2"),
    ],
)
def test_a_template_inside_a_text_renders_as_text(template, text):
    assert rendered(template) == text


@pytest.mark.requirement("W5")
def test_templates_are_found_in_every_string_of_a_structure():
    value = {"a": "{{ index }}", "b": ["x", {"c": "n{{ index }}"}], "d": {"e": [1, 2]}}

    result = rendered(value)

    assert result == {"a": 4, "b": ["x", {"c": "n4"}], "d": {"e": [1, 2]}}
    assert list(result) == list(value)


@pytest.mark.requirement("W5")
def test_constant_parts_are_shared_and_not_copied():
    constant = {"deep": [1, 2, 3]}

    assert rendered({"a": "{{ index }}", "b": constant})["b"] is constant
    assert rendered(constant) is constant


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("value", [None, True, 5, 1.5, "text", "{# no comment #}", "100 % {sure}", [], {}])
def test_a_value_without_a_template_is_constant(value):
    compiled = compile_value(value)

    assert not compiled.paths
    assert compiled.render(TemplateContext()) == value


@pytest.mark.requirement("W5")
@pytest.mark.parametrize(
    ("template", "value"),
    [("{{ item.items }}", "the key"), ("{{ item.values }}", 3), ("{{ nodes.validate.output.count }}", 7)],
)
def test_a_key_hides_a_method_of_the_same_name(template, value):
    assert rendered(template) == value
    assert rendered(template.replace("}}", "| default(0) }}")) == value


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("name", ["keys", "get", "pop", "update", "copy"])
def test_methods_of_objects_are_not_reachable(name):
    with pytest.raises(TemplateFailed, match=f"`item.{name}` is undefined"):
        rendered(f"{{{{ item.{name} }}}}")
    assert rendered(f"{{{{ (item or 1).{name} | default('none') }}}}") == "none"


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("text", ["inputs.name.upper", "inputs.sizes.append", "inputs.name['format']", "index.real"])
def test_methods_of_texts_lists_and_numbers_are_not_reachable(text):
    with pytest.raises(TemplateFailed, match="is undefined"):
        compile_expression(text).render(CONTEXT)


@pytest.mark.requirement("W5")
@pytest.mark.parametrize(
    "template",
    [
        "{{ inputs.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ (inputs or 1)._x }}",
        "{{ inputs.name.upper() }}",
        "{{ range(3) }}",
        "{{ lipsum() }}",
        "{{ cycler }}",
        "{{ self }}",
        "{{ _x }}",
        "{{ inputs | attr('__class__') }}",
        "{{ inputs.sizes | map('upper') }}",
        "{{ inputs.sizes | join(*inputs.sizes) }}",
        "{{ inputs.sizes | join(attribute='a', attribute='b') }}",
        "{{ index is callable }}",
        "{{ index is divisibleby }}",
        "{{ {index: 1} }}",
        "{% for x in inputs.sizes %}{{ x }}{% endfor %}",
        "{% set x = 1 %}",
        "{% macro m() %}{% endmacro %}",
        "{% include 'x' %}",
        "{% if index %}x{% endif %}",
        "{% call x() %}{% endcall %}",
        "{{ null }}",
        "{{ unknown }}",
        "{{ nodes }}",
        "{{ nodes.validate }}",
        "{{ nodes.validate.status }}",
        "{{ nodes[inputs.name].output }}",
        "{{ index",
        "{{ }}",
        "{{ 1 + }}",
        "{{ 99999999999999999999999 }}",
        "{{ 1e999 }}",
    ],
)
def test_forbidden_expressions_are_refused_when_they_are_compiled(template):
    with pytest.raises(TemplateInvalid) as refusal:
        compile_value(template)

    assert refusal.value.code == "template.invalid"
    assert isinstance(refusal.value, InvalidRequest)


@pytest.mark.requirement("W5")
def test_a_key_that_begins_with_an_underscore_can_be_read_as_an_item():
    assert rendered("{{ nodes.validate.output['_id'] }}") == "x"


@pytest.mark.requirement("W5")
def test_a_misspelt_filter_is_reported_with_the_right_one():
    with pytest.raises(TemplateInvalid, match="there is no filter `lenght`; did you mean 'length'"):
        compile_value("{{ inputs.sizes | lenght }}")


@pytest.mark.requirement("W5")
def test_a_call_is_refused_with_the_filter_to_use():
    with pytest.raises(TemplateInvalid, match=r"use the filter: … \| upper"):
        compile_value("{{ inputs.name.upper() }}")


@pytest.mark.requirement("W5")
@pytest.mark.parametrize(
    ("template", "missing"),
    [
        ("{{ nodes.validate.output.foo }}", "nodes.validate.output.foo"),
        ("{{ nodes.absent.output }}", "nodes.absent.output"),
        ("{{ inputs.optional }}", "inputs.optional"),
        ("{{ inputs.optional + 1 }}", "inputs.optional"),
        ("n{{ inputs.optional }}", "inputs.optional"),
        ("{{ [inputs.optional] }}", "inputs.optional"),
        ("{{ {'a': inputs.optional} }}", "inputs.optional"),
        ("{{ inputs.optional | upper }}", "inputs.optional"),
        ("{{ inputs.sizes | join(inputs.optional) }}", "inputs.optional"),
        ("{{ inputs.optional if true else 1 }}", "inputs.optional"),
        ("{{ not inputs.optional }}", "inputs.optional"),
        ("{{ inputs.optional == 1 }}", "inputs.optional"),
        ("{{ inputs.optional in [1] }}", "inputs.optional"),
        ("{{ inputs.sizes[9] }}", "inputs.sizes[9]"),
        ("{{ items }}", "items"),
        ("{{ inputs.name.a.b }}", "inputs.name.a.b"),
    ],
)
def test_the_error_names_the_undefined_value(template, missing):
    with pytest.raises(TemplateFailed) as failure:
        rendered(template)

    assert f"`{missing}` is undefined" in failure.value.message
    assert failure.value.code == "template.failed"


@pytest.mark.requirement("W5")
def test_an_optional_input_without_default_is_undefined_and_default_works():
    assert rendered("{{ inputs.optional | default('x') }}") == "x"
    assert rendered("{{ inputs.optional.deep.er | default([]) }}") == []
    assert rendered("{{ inputs.optional is defined }}") is False
    assert rendered("{{ inputs.nothing is none }}") is True
    assert rendered("{{ inputs.nothing | default('x') }}") is None
    assert rendered("{{ inputs.nothing | default('x', true) }}") == "x"


@pytest.mark.requirement("W5")
@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ inputs.sizes | length }}", 3),
        ("{{ inputs.sizes | sum }}", 37),
        ("{{ inputs.sizes | max }}", 20),
        ("{{ inputs.sizes | min }}", 5),
        ("{{ inputs.sizes | sort }}", [5, 12, 20]),
        ("{{ inputs.sizes | sort(reverse=true) | first }}", 20),
        ("{{ inputs.sizes | reverse | last }}", 5),
        ("{{ [1, 1, 2] | unique }}", [1, 2]),
        ("{{ inputs.sizes | join('-') }}", "5-20-12"),
        ("{{ nodes.files.output | map(attribute='name') }}", ["b", "a"]),
        ("{{ [[1, 2], [3, 4]] | map(attribute=0) }}", [1, 3]),
        ("{{ [[1, 2], [3, 4]] | map(attribute=-1) }}", [2, 4]),
        ("{{ [[1, 9], [3, 4]] | sum(attribute=1) }}", 13),
        ("{{ [[2, 'b'], [1, 'a']] | sort(attribute=0) | map(attribute='1') }}", ["a", "b"]),
        ("{{ nodes.files.output | sum(attribute='size') }}", 3),
        ("{{ nodes.files.output | sort(attribute='name') | map(attribute='size') }}", [1, 2]),
        ("{{ nodes.files.output | selectattr('size', '>', 1) | map(attribute='name') }}", ["b"]),
        ("{{ nodes.files.output | rejectattr('size', 'eq', 1) | length }}", 1),
        ("{{ nodes.validate.output.path | split('/') | last | replace('.tif', '') | upper }}", "C"),
        ("{{ ' A b ' | trim | lower | title | capitalize }}", "A b"),
        ("{{ 'abcdef' | truncate(4) }}", "abc…"),
        ("{{ '12' | int + 1 }}", 13),
        ("{{ 'x' | int(7) }}", 7),
        ("{{ '1.5' | float }}", 1.5),
        ("{{ -2.567 | abs | round(1) }}", 2.6),
        ("{{ index | string }}", "4"),
        ("{{ item.a | tojson }}", '{"b":[10,20]}'),
        ("{{ item.a | keys }}", ["b"]),
        ("{{ item.a | values | first }}", [10, 20]),
        ("{{ 'abc' | list }}", ["a", "b", "c"]),
        ("{{ index is even }}", True),
        ("{{ 9 is divisibleby(3) }}", True),
        ("{{ index is odd }}", False),
        ("{{ inputs.sizes is sequence and item is mapping and index is number }}", True),
        ("{{ (2 ** 10) % 1000 // 5 - 1 }}", 3),
        ("{{ -index }}", -4),
        ("{{ item[inputs.sizes and 'values'] }}", 3),
    ],
)
def test_filters_and_operators_have_the_expected_results(template, value):
    assert rendered(template) == value


@pytest.mark.requirement("W5")
@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ 'a' < 1 }}",
        "{{ index | join }}",
        "{{ [1, 'a'] | sort }}",
        "{{ [] | first }}",
    ],
)
def test_the_error_of_an_expression_without_a_value_names_the_expression(template):
    with pytest.raises(TemplateFailed) as failure:
        rendered(template)

    assert template in failure.value.message


@pytest.mark.requirement("W5")
def test_a_template_inside_a_value_is_not_rendered():
    context = TemplateContext(inputs={"evil": "{{ job.secret }}"}, job={"secret": "s"})

    assert rendered("{{ inputs.evil }}", context) == "{{ job.secret }}"
    assert rendered("<{{ inputs.evil }}>", context) == "<{{ job.secret }}>"


@pytest.mark.requirement("W5")
def test_a_compiled_value_lists_the_names_that_it_uses():
    compiled = compile_value(
        {
            "a": "{{ nodes.x.output.b }} {{ nodes['y-1'].output }}",
            "b": ["{{ inputs.n + index }}"],
            "c": "{{ job.job_id }}",
        }
    )

    assert compiled.nodes == {"x", "y-1"}
    assert compiled.inputs == {"n"}
    assert compiled.names == {"nodes", "inputs", "index", "job"}
    assert compiled.paths


@pytest.mark.requirement("W7")
def test_item_index_and_items_exist_only_where_given():
    context = TemplateContext(inputs={})

    with pytest.raises(TemplateFailed, match="`item` is undefined"):
        rendered("{{ item }}", context)
    assert rendered("{{ [item, index] }}", context.having(item=None, index=0)) == [None, 0]
    assert rendered("{{ items }}", TemplateContext(items=[1])) == [1]


@pytest.mark.requirement("W7")
@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("{{ nodes.files.output }}", FILES),
        ("nodes.files.output", FILES),
        (" nodes . files.output ", FILES),
        ("inputs.sizes", [5, 20, 12]),
    ],
)
def test_a_source_can_be_written_with_or_without_braces(text, source):
    assert compile_expression(text).render(CONTEXT) == source


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("text", ["x {{ index }}", "{{ index }}{{ index }}", "", "index index", "index }} x"])
def test_a_source_must_be_one_expression(text):
    with pytest.raises(TemplateInvalid):
        compile_expression(text)


@pytest.mark.requirement("W6")
@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("{{ nodes.validate.output.file_size_mb }} > 100", True),
        ("{{ nodes.validate.output.file_size_mb > 100 }}", True),
        ("nodes.validate.output.file_size_mb > 100", True),
        ("{{ nodes.validate.output.file_size_mb }} <= {{ inputs.zero }}", False),
        ("{{ inputs.name }} == 'dem'", True),
        ('{{ inputs.name }} != "dem"', False),
        ("{{ inputs.name }} in ['dem', 'dsm']", True),
        ("{{ index }} not in {{ inputs.sizes }}", True),
        ("not {{ inputs.flag }} and ({{ index }} < 3 or {{ index }} == 4)", True),
        ("{{ inputs.flag }}", False),
        ("{{ inputs.sizes }}", True),
        ("{{ inputs.optional is defined }}", False),
        ("{{ inputs.name == '}}' }}", False),
        ("true", True),
    ],
)
def test_a_condition_can_compare_inside_or_outside_of_the_braces(condition, holds):
    assert compile_condition(condition).render(CONTEXT) is holds


@pytest.mark.requirement("W6")
def test_values_are_not_inserted_into_the_text_of_a_condition():
    context = TemplateContext(inputs={"name": "' or true or '"})

    assert compile_condition("{{ inputs.name }} == 'x'").render(context) is False


@pytest.mark.requirement("W6")
def test_braces_group_their_content():
    assert compile_condition("not {{ inputs.flag or true }}").render(CONTEXT) is False


@pytest.mark.requirement("W6")
@pytest.mark.parametrize("text", ["'{{ inputs.name }}' == 'dem'", '"{{ inputs.name }}" == "dem"'])
def test_quotes_around_braces_are_refused_because_they_would_never_match(text):
    with pytest.raises(TemplateInvalid, match="quotes"):
        compile_condition(text)


@pytest.mark.requirement("W6")
def test_a_condition_whose_result_is_a_text_is_refused():
    with pytest.raises(TemplateFailed, match="gives the text 'false'"):
        compile_condition("{{ inputs.text }}").render(CONTEXT)


@pytest.mark.requirement("W6")
@pytest.mark.parametrize(
    "text", ["{{ index }} >", "{{ index }} {{ index }}", "{{ index }} > 1 }}", "", "{{ inputs.name }} == dem"]
)
def test_a_condition_that_is_not_an_expression_is_refused(text):
    with pytest.raises(TemplateInvalid):
        compile_condition(text)


@pytest.mark.requirement("W6")
@pytest.mark.parametrize(
    ("branch", "value", "holds"),
    [
        ("< 100", 99, True),
        ("< 100", 100, False),
        (">= 5", 5, True),
        ("== 'dem'", "dem", True),
        ("!= 'dem'", "dem", False),
        ("in ['a','b']", "b", True),
        ("in['a','b']", "c", False),
        ("not in ['a','b']", "b", False),
        ("> {{ inputs.zero }}", 1, True),
        ("is none", None, True),
        ("> 1 and value < 3", 2, True),
    ],
)
def test_a_branch_compares_the_field(branch, value, holds):
    assert compile_branch(branch).render(CONTEXT.having(value=value)) is holds


@pytest.mark.requirement("W6")
@pytest.mark.parametrize("branch", ["100", "dem", "value < 3", "", "< ", "inputs.zero > 1"])
def test_a_branch_must_begin_with_a_comparison(branch):
    with pytest.raises(TemplateInvalid):
        compile_branch(branch)


# --- paths -----------------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", "items", "keys", "get", "0", "x-y", "_z", ""])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
STEPS = st.lists(KEYS | st.integers(-4, 4), max_size=4)


def naive(value: Any, steps: list[str | int]) -> Any:
    for step in steps:
        if isinstance(value, dict) == isinstance(step, int):
            raise LookupError(step)
        value = value[step]
    return value


def is_same(value: Any, expected: Any) -> bool:
    """Whether both are the same object, or equal texts: Python creates a new text for each character that is read."""
    return value is expected or (isinstance(expected, str) and value == expected)


@pytest.mark.requirement("W5")
@given(item=JSON, steps=STEPS)
def test_a_path_has_the_same_result_as_plain_python(item, steps):
    text = "item" + "".join(f"[{step!r}]" for step in steps)
    context = TemplateContext(item=item)

    try:
        expected = naive(item, steps)
    except (LookupError, TypeError):
        with pytest.raises(TemplateFailed):
            compile_expression(text).render(context)
    else:
        assert is_same(compile_expression(text).render(context), expected)
        assert is_same(rendered(f"{{{{ [{text}][0] }}}}", context), expected)


@pytest.mark.requirement("W5")
@given(item=JSON, steps=STEPS)
def test_a_path_has_the_same_result_inside_a_larger_expression(item, steps):
    """Here the last step is not part of the path: the environment of Jinja evaluates it."""
    *fixed, last = steps or ["a"]
    path = "item" + "".join(f"[{step!r}]" for step in fixed)
    context = TemplateContext(item=item, index=last)

    direct = rendered(f"{{{{ {path}[{last!r}] | default('MISSING') }}}}", context)

    assert rendered(f"{{{{ ({path} | default([]))[index] | default('MISSING') }}}}", context) == direct


@pytest.mark.requirement("W7")
def test_rendering_a_simple_path_is_fast_enough_for_thousands_of_children():
    compiled = compile_value("{{ item.a.b[0] }}")

    fastest = min(_seconds(compiled, 2_000) for _ in range(5))

    assert fastest / 2_000 < 15e-6


def _seconds(compiled: Any, times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        compiled.render(CONTEXT)
    return time.perf_counter() - started


@pytest.mark.requirement("E27")
def test_an_unexpected_error_while_rendering_fails_the_template_with_its_class_and_place():
    """The planner turns a failed template into a failed node; after any other error the job would not advance."""
    with (
        pytest.raises(TemplateFailed, match=r"AttributeError: gone \(test_expressions\.py, line \d+, in test_an_"),
        _rendering("{{ inputs.name }}"),
    ):
        raise AttributeError("gone")
