"""Write the lines "Proved by" of docs/requirements.md from the tests' markers.
With --check, only report whether they are up to date.

The tests are read, not imported: a marker is `pytest.mark.requirement("E18", …)` on a test or its class,
or in `pytestmark`.
"""

import ast
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "requirements.md"
TESTS = ROOT / "tests"

HEADING = re.compile(r"^### (?P<tag>[A-Z]\d+)\. .+$", re.MULTILINE)
_PROOF = re.compile(r"\n\nProved by [^\n]+(\n[^\n]+)*")
_SECTION = re.compile(r"(?P<heading>^### (?P<tag>[A-Z]\d+)\. .+?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)

Proofs = Mapping[str, Sequence[str]]  # the tag of a requirement: the test modules that prove it


def render() -> str:
    return renewed(PAGE.read_text(), proofs(TESTS))


def renewed(page: str, proved: Proofs) -> str:
    """The page with new lines "Proved by"; all other text stays."""

    def with_proof(section: re.Match[str]) -> str:
        statement = _PROOF.sub("", section["heading"]).rstrip()
        return f"{statement}\n\n{_proof(proved.get(section['tag'], ()))}\n\n"

    return _SECTION.sub(with_proof, page).rstrip() + "\n"


def _proof(modules: Sequence[str]) -> str:
    text = "Proved by " + (", ".join(f"`{module}`" for module in modules) or "no test")
    return textwrap.fill(text, width=120, break_long_words=False, break_on_hyphens=False)


def proofs(folder: Path) -> Proofs:
    """The modules below this folder that have a test of a requirement, for every requirement that a marker names."""
    proved: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        tests = tests_in(ast.parse(path.read_text()))
        for tag in frozenset().union(*(tags for _, tags in tests)):
            proved.setdefault(tag, []).append(path.relative_to(folder).as_posix())
    return proved


def tests_in(module: ast.Module) -> Iterator[tuple[str, frozenset[str]]]:
    """The name of each test, with the tags of its requirements."""
    yield from _tests(module.body, _assigned(module.body))


def _tests(body: Iterable[ast.stmt], inherited: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef) and statement.name.startswith("Test"):
            own = _tags(statement.decorator_list) | _assigned(statement.body)
            yield from _tests(statement.body, inherited | own)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name.startswith("test_"):
            yield statement.name, inherited | _tags(statement.decorator_list)


def _assigned(body: Iterable[ast.stmt]) -> frozenset[str]:
    """The tags in `pytestmark = …`."""
    values = (
        statement.value for statement in body if isinstance(statement, ast.Assign) and _is_mark(statement.targets[0])
    )
    return _tags(values)


def _is_mark(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id == "pytestmark"


def _tags(expressions: Iterable[ast.expr]) -> frozenset[str]:
    calls = (node for expression in expressions for node in ast.walk(expression) if isinstance(node, ast.Call))
    markers = (call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "requirement")
    return frozenset(tag.value for marker in markers for tag in marker.args if isinstance(tag, ast.Constant))


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        is_current = PAGE.exists() and PAGE.read_text() == render()
        print(f"{PAGE.name} is {'up to date' if is_current else 'not up to date: run scripts/list_requirements.py'}")
        return 0 if is_current else 1
    PAGE.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
