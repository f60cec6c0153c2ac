"""The templates for Azure are Bicep: the grammar accepts them, every name exists, and modules get their parameters.

This is not a compiler: types and properties of resources are not checked.
"""

from collections.abc import Iterator

import pytest
import tree_sitter_bicep
from tree_sitter import Language, Node, Parser

from tests.deploy.manifests import ROOT

pytestmark = pytest.mark.requirement("M5")

PARSER = Parser(Language(tree_sitter_bicep.language()))
FILES = {file.name: file for file in sorted((ROOT / "deploy" / "azure").glob("*.bicep"))}
DECLARATIONS = ("parameter_declaration", "variable_declaration", "resource_declaration", "module_declaration")
# Functions of Bicep that the templates use.
FUNCTIONS = {
    *("concat", "description", "empty", "guid", "json", "maxLength", "minLength", "replace", "resourceGroup", "string"),
    *("subscriptionResourceId", "take", "tenant", "union", "uniqueString"),
}


def parsed(text: bytes) -> Node:
    return PARSER.parse(text).root_node


def template(name: str) -> Node:
    return parsed(FILES[name].read_bytes())


def nodes(node: Node, *types: str) -> Iterator[Node]:
    if not types or node.type in types:
        yield node
    for child in node.named_children:
        yield from nodes(child, *types)


def text(node: Node) -> str:
    assert node.text is not None
    return node.text.decode()


def name_of(declaration: Node) -> str:
    return text(declaration.named_children[0])


def undeclared(root: Node) -> set[str]:
    """Names that are used and neither declared in the file nor functions of Bicep."""
    declared = {name_of(each) for each in nodes(root, *DECLARATIONS)}
    declared |= {
        text(name) for each in nodes(root, "for_statement") if (name := each.child_by_field_name("initializer"))
    }
    return {text(each) for each in nodes(root, "identifier") if not is_label(each)} - declared - FUNCTIONS


def is_label(identifier: Node) -> bool:
    """Whether a name is the key of a property, or the name that a declaration declares."""
    parent = identifier.parent
    assert parent is not None
    return parent.type in ("object_property", "output_declaration") and parent.named_children[0] == identifier


def parameters(root: Node) -> dict[str, bool]:
    """The parameters of a template, and whether each has a default."""
    return {name_of(each): len(each.named_children) > 2 for each in nodes(root, "parameter_declaration")}


def passed(module: Node) -> set[str]:
    """The names of the parameters that a module gets."""
    (block,) = (each for each in nodes(module, "object_property") if text(each.named_children[0]) == "params")
    return {text(each.named_children[0]) for each in block.named_children[1].named_children if each.type != "comment"}


@pytest.mark.parametrize("name", FILES)
def test_the_grammar_accepts_a_template(name):
    faults = [each.start_point for each in nodes(template(name)) if each.is_error or each.is_missing]

    assert faults == []
    assert not template(name).has_error


@pytest.mark.parametrize("name", FILES)
def test_every_name_of_a_template_is_declared(name):
    assert undeclared(template(name)) == set()


def test_every_module_gets_its_required_parameters_and_no_unknown_ones():
    modules = list(nodes(template("main.bicep"), "module_declaration"))

    assert len(modules) == 6
    for module in modules:
        file = text(module.named_children[1]).strip("'")
        known = parameters(template(file))
        needed = {name for name, has_default in known.items() if not has_default}
        assert needed <= passed(module) <= known.keys(), name_of(module)


def test_mistakes_are_detected():
    """Otherwise the tests above prove nothing."""
    assert parsed(b"resource a 'B/c@1' = {\n  name: 'x'\n").has_error
    assert undeclared(parsed(b"param a string\nvar b = { name: a, id: other.id }\n")) == {"other"}
    assert parameters(parsed(b"param a string\nparam b int = 1\n")) == {"a": False, "b": True}
