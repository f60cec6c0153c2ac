"""Each name of a class or of a type alias has one meaning in the whole source. Names that differ only in a leading
underscore count as one."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pytest

from tests.packaging.environments import ROOT

CLASS = "class"
# Each module that needs one of these has its own, and their meaning is the same everywhere.
FAMILIES = {
    "Json",  # a JSON object, which may be read-only
    "Seconds",  # a duration, with a maximum of its own
    "Services",  # the services of an app, for its routes
}
# The type of a route's parameter may have the name of the value that it carries, such as `AssetName`.
PARAMETERS = ("Cookie", "Header", "Path", "Query")
PARAMETER = "parameter of a route"


class Definition(NamedTuple):
    name: str
    meaning: str
    place: str


def test_each_name_of_a_class_or_a_type_has_one_meaning():
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "src").rglob("*.py")}

    assert ambiguous(definitions_of(sources)) == {}


@pytest.mark.parametrize(
    "again",
    [
        "class Plan: ...",
        "class _Plan: ...",
        "def plan():\n    class Plan: ...",
        "Plan = dict[str, int]",
        "Plan: TypeAlias = 'dict[str, int]'",
        "_Plan = str | None",
        "Plan = NewType('Plan', str)",
        "Plan = TypeVar('Plan')",
        "Plan = Annotated[str, Query(description='The plan')]",
    ],
)
def test_another_definition_of_the_name_of_a_class_is_found(again: str):
    sources = {"one.py": "class Plan: ...", "another.py": again}

    assert list(ambiguous(definitions_of(sources))) == ["Plan"]


@pytest.mark.parametrize(
    ("one", "another", "is_ambiguous"),
    [
        ("Rule = Callable[[int], str]", "Rule = Callable[[int], str]", False),
        ("Rule = Callable[[int], str]", "Rule = Callable[[str], str]", True),
        ("Reader = Annotated[Caller, Depends(needs('a'))]", "Reader = Annotated[Caller, Depends(needs('a'))]", False),
        ("Reader = Annotated[Caller, Depends(needs('a'))]", "Reader = Annotated[Caller, Depends(needs('b'))]", True),
        ("Name = Annotated[str, Query(description='A')]", "Name = Annotated[str, Path(description='B')]", False),
        ("Name = Annotated[str, Query(description='A')]", "Name = Annotated[str, Field(max_length=9)]", False),
        ("Item = TypeVar('Item')", "Item = TypeVar('Item', bound=str)", False),
        ("Json = dict[str, Any]", "Json = Mapping[str, Any]", False),
        ("LIMITS = dict(a=1)", "LIMITS = dict(a=2)", False),
    ],
)
def test_aliases_of_one_name_may_repeat_their_meaning(one: str, another: str, is_ambiguous: bool):
    assert bool(ambiguous(definitions_of({"one.py": one, "another.py": another}))) is is_ambiguous


def ambiguous(definitions: Iterable[Definition]) -> dict[str, list[str]]:
    """The places of each name with more than one meaning."""
    by_name: defaultdict[str, list[Definition]] = defaultdict(list)
    for definition in definitions:
        by_name[definition.name.lstrip("_")].append(definition)
    return {
        name: [each.place for each in found]
        for name, found in by_name.items()
        if name not in FAMILIES and has_several_meanings([each.meaning for each in found])
    }


def has_several_meanings(meanings: list[str]) -> bool:
    if CLASS in meanings:
        return len(meanings) > 1
    return len({meaning for meaning in meanings if meaning != PARAMETER and not meaning.startswith("TypeVar(")}) > 1


def definitions_of(sources: Mapping[str, str]) -> Iterator[Definition]:
    for path, source in sources.items():
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield Definition(node.name, CLASS, f"{path}:{node.lineno}")
        for statement in tree.body:
            for name, value in aliases(statement):
                yield Definition(name, meaning_of(value), f"{path}:{statement.lineno}")


def aliases(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """The types that a statement of a module names. Constants are in capitals."""
    match statement:
        case ast.Assign(targets=[ast.Name(name)], value=value) | ast.AnnAssign(target=ast.Name(name), value=value):
            is_type = name.lstrip("_")[:1].isupper() and not name.isupper()
            if is_type and value is not None:
                yield name, value


def meaning_of(value: ast.expr) -> str:
    """The text of an alias, unless it is the parameter of a route."""
    match value:
        case ast.Subscript(value=ast.Name("Annotated"), slice=ast.Tuple(elts=[*_, ast.Call(func=ast.Name(marker))])):
            if marker in PARAMETERS:
                return PARAMETER
    return ast.unparse(value)
