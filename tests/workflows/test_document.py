"""Strict YAML: bombs, surprising scalars of YAML 1.1, and the position of every value."""

import time

import pytest

from dagmaster.workflows.document import Document, DocumentLimits, Unreadable, parse

from .builders import problems_of, the_problem

LIMITS = DocumentLimits(max_bytes=262_144, max_depth=30, max_nodes=20_000)


def value_of(text: str) -> object:
    document, problems = parse(text, LIMITS)
    assert not problems
    return document.value


@pytest.mark.requirement("W1")
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("y", "y"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("012", "012"),
        ("0o17", "0o17"),
        ("0x1f", "0x1f"),
        ("1_000", "1_000"),
        (".inf", ".inf"),
        (".5", ".5"),
        ("+5", "+5"),
        ("1e3", 1000.0),
        ("=", "="),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("5", 5),
        ("-5", -5),
        ("1.10", 1.1),
        ("'5'", "5"),
        ('"true"', "true"),
        ("|\n  5", "5"),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_unquoted_values_are_read_as_in_json(written, value):
    assert value_of(f"a: {written}") == {"a": value}
    assert type(value_of(f"a: {written}")["a"]) is type(value)


@pytest.mark.requirement("W3")
def test_every_value_and_key_has_its_line_and_column():
    document, _ = parse("a: 1\nb:\n  - x\n  - {c: 2}\n", LIMITS)

    assert document.value == {"a": 1, "b": ["x", {"c": 2}]}
    assert document.place(("a",)) == (1, 4)
    assert document.place(("b",), key=True) == (2, 1)
    assert document.place(("b", 1, "c")) == (4, 9)
    assert document.place(("b", 1, "absent")) == (4, 5)
    assert Document().place(("a",)) == (0, 0)


@pytest.mark.requirement("W3")
@pytest.mark.parametrize(
    ("text", "words", "line", "column"),
    [
        ("a: &x 1\n", "anchors are not allowed (&x)", 1, 4),
        ("a: &x 1\nb: *x\n", "aliases are not allowed (*x)", 2, 4),
        ("*x : 1\n", "aliases", 1, 1),
        ("a: !!str 5\n", "tags are not allowed", 1, 4),
        ("a: !!python/object/apply:os.system ['x']\n", "tags are not allowed", 1, 4),
        ("a: 1\nb: 2\na: 3\n", "'a' is written twice; it is already in line 1", 3, 1),
        ("n:\n  b: {x: 1}\n  b: {x: 2}\n", "'b' is written twice; it is already in line 2", 3, 3),
        ("a: {x: 1}\n<<: {y: 1}\n", "merge keys", 2, 1),
        ("a: 1\n---\nb: 2\n", "a second YAML document", 2, 1),
        ("? [a]\n: 1\n", "a key must be a plain text", 1, 3),
        ("'': 1\n", "a key is empty", 1, 1),
        ("a: [1, 2\nb: 3\n", "not YAML", 2, 2),
        ("a:\n\t- b\n", "indent with spaces, not tabs", 2, 1),
        ("a: 1\nb: \x07\n", "control character U+0007", 2, 4),
        ("a: 1\nb: \u202e\n", "control character U+202E", 2, 4),
        ('a: 1\nb: "\\0"\n', "control characters are not allowed, even escaped", 2, 4),
        (b"a: 1\nb: \xff\n", "not UTF-8", 2, 4),
        ("a: " + "[" * 40 + "]" * 40, "nested deeper than 30 levels", 1, 33),
        ("a: 99999999999999999999\n", "does not fit into 64 bits", 1, 4),
        ("a: 1e999\n", "does not fit into 64 bits", 1, 4),
        ("a: " + "9" * 5000 + "\n", "too many digits", 1, 4),
    ],
)
def test_forbidden_yaml_is_reported_with_line_and_column(text, words, line, column):
    problem = the_problem(problems_of(text), words)

    assert (problem.line, problem.column) == (line, column)


@pytest.mark.requirement("W3")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("---\n", "a workflow is a mapping"),
        ("5", "a workflow is a mapping"),
        ("- a\n- b\n", "a workflow is a mapping"),
        ("text", "a workflow is a mapping"),
    ],
)
def test_a_file_that_is_not_a_mapping_is_reported(text, words):
    the_problem(problems_of(text), words)


@pytest.mark.requirement("W3")
def test_a_byte_order_mark_is_ignored():
    assert value_of("\ufeffa: 1") == {"a": 1}
    assert parse(b"\xef\xbb\xbfa: 1", LIMITS)[0].value == {"a": 1}


@pytest.mark.requirement("W11")
def test_a_file_beyond_the_size_limit_is_not_parsed():
    problem = the_problem(problems_of("a: " + "x" * 262_144), "bytes; at most 262,144 are allowed")

    assert problem.line == 0


@pytest.mark.requirement("W11")
def test_a_file_with_too_many_values_is_refused():
    the_problem(problems_of("a: [" + "1," * 30_000 + "]"), "more than 20,000 values")


@pytest.mark.requirement("W3")
def test_a_yaml_bomb_is_refused_at_once():
    rows = ['a: &a ["x","x","x","x","x","x","x","x","x"]']
    rows += [f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    started = time.process_time()

    with pytest.raises(Unreadable, match="anchors"):
        parse("\n".join(rows), LIMITS)

    assert time.process_time() - started < 1


@pytest.mark.requirement("W3")
def test_deep_nesting_is_refused_while_parsing():
    started = time.process_time()

    with pytest.raises(Unreadable, match="nested"):
        parse("[" * 200_000, LIMITS)

    assert time.process_time() - started < 1


@pytest.mark.requirement("W3")
def test_several_errors_in_the_yaml_are_reported_together():
    problems = problems_of("a: &x 1\nb: !!int 2\na: 3\n")

    assert {problem.line for problem in problems} == {1, 2, 3}
    the_problem(problems, "anchors")
    the_problem(problems, "tags")
    the_problem(problems, "twice")
