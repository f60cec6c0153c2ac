"""docs/requirements.md lists the requirements that markers of tests name.
tests/docs/test_generated.py checks that the page is up to date."""

import ast
import re
import subprocess
import sys
from types import ModuleType

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_generated import script

TAG = r"[a-z]\d{1,2}"
PAGE = """# Requirements

## Engine

### E1. States

States are fixed.

Proved by `engine/test_old.py`

### E2. Creating a job

In one transaction.

## Queues

### Q1. Routing

By name.
"""


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return script("list_requirements")


@pytest.fixture(scope="module")
def tags(generator) -> list[str]:
    """The tags in markers of tests. Parsing all tests takes seconds."""
    return sorted(generator.proofs(generator.TESTS))


def test_every_tag_in_use_is_on_the_page_and_every_requirement_has_a_test(generator, tags):
    on_page = [heading["tag"] for heading in generator.HEADING.finditer(generator.PAGE.read_text())]

    assert sorted(on_page) == tags


def test_no_test_has_a_tag_in_its_name(generator, tags):
    tags = {tag.lower() for tag in tags}
    modules = [path.read_text() for path in generator.TESTS.rglob("test_*.py")]
    names = [name for module in modules for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", module, re.MULTILINE)]

    assert len(names) > 1000
    assert [name for name in names if re.match(rf"test_{TAG}_", name) or name.rpartition("_")[2] in tags] == []


def test_an_update_of_the_page_keeps_manually_written_text(generator, tmp_path, monkeypatch):
    monkeypatch.setattr(generator, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(generator, "TESTS", tmp_path)
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "test_states.py").write_text('@pytest.mark.requirement("E1", "Q1")\ndef test_states(): ...\n')

    assert generator.main(["--check"]) == 1
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0

    page = (tmp_path / "page.md").read_text()
    assert "States are fixed.\n\nProved by `test_states.py`\n\n### E2" in page
    assert "In one transaction.\n\nProved by no test\n\n## Queues" in page
    assert page.endswith("By name.\n\nProved by `test_states.py`\n")


def test_markers_of_tests_classes_and_modules_are_read(generator):
    module = ast.parse(
        "pytestmark = [pytest.mark.requirement('E1'), pytest.mark.slow]\n"
        "@pytest.mark.requirement('E2', 'E3')\n"
        "async def test_a(): ...\n"
        "@pytest.mark.requirement('E4')\n"
        "class TestB:\n"
        "    @pytest.mark.timeout(5)\n"
        "    def test_c(self): ...\n"
        "def helper(): ...\n"
    )

    assert dict(generator.tests_in(module)) == {"test_a": {"E1", "E2", "E3"}, "test_c": {"E1", "E4"}}


def test_the_option_selects_the_tests_of_a_requirement(generator):
    path = "tests/jobs/test_view.py"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", path, "--requirement=E1", "--requirement=E17"]

    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    collected = {name.partition("[")[0] for name in re.findall(r"::(test_\S+)", listed)}
    tests = generator.tests_in(ast.parse((ROOT / path).read_text()))
    assert collected == {name for name, tags in tests if tags & {"E1", "E17"}} != set()
