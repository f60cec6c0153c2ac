"""Class names are unique in the whole source."""

import ast
from collections import defaultdict

from tests.packaging.environments import ROOT


def test_each_class_name_is_unique():
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")

    assert {name: places for name, places in modules.items() if len(places) > 1} == {}
