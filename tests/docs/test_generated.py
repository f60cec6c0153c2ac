"""Generated pages are up to date."""

import importlib.util
import re
from dataclasses import replace
from types import ModuleType
from typing import get_args

import click
import pytest

from dagmaster.cli import main as command_line
from dagmaster.errors import InvalidWorkflow
from dagmaster.handlers import shipped
from dagmaster.jobs import states
from dagmaster.settings import Settings
from dagmaster.workflows import model
from dagmaster.workflows.load import read
from tests.docs.pages import ROOT


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STATES = script("draw_states")


@pytest.mark.parametrize("name", ["draw_states", "list_settings", "list_requirements"])
def test_a_generated_page_is_up_to_date(name):
    generator = script(name)

    assert generator.PAGE.read_text() == generator.render(), f"run .venv/bin/python scripts/{name}.py"
    assert generator.main(["--check"]) == 0


@pytest.mark.parametrize("name", ["draw_states", "list_settings"])
def test_an_outdated_page_is_detected_and_updated(name, tmp_path):
    generator = script(name)
    generator.PAGE = tmp_path / "page.md"
    generator.PAGE.write_text(generator.render() + "an old line\n")

    assert generator.main(["--check"]) == 1
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("cycle", "moves", "reruns"),
    [
        (STATES.JOB, states.JOB_MOVES, states.JOB_RERUNS),
        (STATES.NODE, states.NODE_MOVES, states.NODE_RERUNS),
        (STATES.TASK, states.TASK_MOVES, {}),
    ],
    ids=lambda value: value.name if isinstance(value, STATES.LifeCycle) else "",
)
def test_a_diagram_has_exactly_the_transitions_of_its_table(cycle, moves, reruns):
    arrows = {
        tuple(line.split(" : ")[0].strip().split(" --> "))
        for line in STATES.mermaid(cycle).splitlines()
        if "-->" in line
    }

    drawn = {arrow for arrow in arrows if "[*]" not in arrow}

    pairs = {(str(state), str(target)) for table in (moves, reruns) for state in table for target in table[state]}
    assert drawn == pairs
    assert {target for source, target in arrows if source == "[*]"} == set(cycle.initial)
    assert {source for source, target in arrows if target == "[*]"} == set(cycle.terminal)


def test_a_diagram_changes_with_its_table():
    fewer = {**states.TASK_MOVES, states.TaskStatus.QUEUED: frozenset({states.TaskStatus.RUNNING})}

    changed = replace(STATES.TASK, moves=fewer)

    assert "queued --> cancelled" in STATES.mermaid(STATES.TASK)
    assert "queued --> cancelled" not in STATES.mermaid(changed)


def test_every_state_is_explained():
    cycles = (STATES.JOB, STATES.NODE, STATES.TASK)

    assert {cycle.name: list(STATES.MEANINGS[cycle.name]) for cycle in cycles} == {
        cycle.name: list(cycle.states) for cycle in cycles
    }


@pytest.mark.requirement("M2")
def test_every_setting_is_explained():
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


@pytest.mark.requirement("M3")
def test_the_reference_is_up_to_date():
    reference = script("write_reference")

    stale = [name for name, render in reference.PAGES.items() if (reference.FOLDER / name).read_text() != render()]

    assert stale == [], "run .venv/bin/python scripts/write_reference.py"
    assert reference.main(["--check"]) == 0


@pytest.mark.requirement("M3")
def test_an_outdated_reference_is_detected_and_updated(tmp_path, monkeypatch):
    reference = script("write_reference")
    monkeypatch.setattr(reference, "PAGES", {"cli.md": lambda: "new\n", "errors.md": lambda: "codes\n"})

    assert reference.main(["--check"], tmp_path) == 1
    assert reference.main([], tmp_path) == 0
    (tmp_path / "cli.md").write_text("old")
    assert reference.main(["--check"], tmp_path) == 1
    assert reference.main([], tmp_path) == 0
    assert reference.main(["--check"], tmp_path) == 0


@pytest.mark.requirement("M3")
def test_the_reference_does_not_depend_on_the_environment(monkeypatch):
    reference = script("write_reference")
    before = {name: render() for name, render in reference.PAGES.items()}
    monkeypatch.setenv("API_PORT", "1234")
    monkeypatch.setenv("LOG_LEVEL", "debug")

    assert {name: render() for name, render in reference.PAGES.items()} == before


@pytest.mark.requirement("M3")
def test_every_command_path_and_field_is_in_the_reference():
    reference = script("write_reference")
    api, cli, fields = (reference.PAGES[name]() for name in ("api.md", "cli.md", "workflows.md"))
    root = command_line.cli
    commands = root.list_commands(click.Context(root))

    assert [name for name in commands if f"## dagmaster {name}\n" not in cli] == []
    assert {"POST /api/v1/jobs", "GET /livez"} <= set(re.findall(r"^### (.+)$", api, re.MULTILINE))
    assert {"`job.not-found`", "`dead-letter.not-replayable`", "`route.not-found`"} <= set(
        re.findall(r"`[a-z.-]+`", api)
    )
    assert {"`request.invalid`", "`workflow.invalid`", "`internal`"} <= set(re.findall(r"`[a-z.-]+`", api))
    assert all(f"| `{name}`" in fields for part in reference.PARTS for name in part.model_fields)
    assert set(get_args(model.AnyNode)) <= set(reference.PARTS)


@pytest.mark.requirement("M3")
def test_no_description_of_a_removed_field_remains():
    reference = script("write_reference")
    known = {name for part in reference.PARTS for name in part.model_fields}
    known |= {f"{part.__name__}.{name}" for part in reference.PARTS for name in part.model_fields}

    assert set(reference.MEANINGS) <= known


@pytest.mark.requirement("M3")
def test_fields_that_are_refused_are_not_in_the_reference():
    reference = script("write_reference")
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", reference.workflow_page(), re.MULTILINE | re.DOTALL))

    for kind, field in reference.REFUSED:
        heading = reference.PARTS[kind][0]
        text = (
            "{type: end, next: start}" if kind is model.EndNode else "{type: conditional, condition: 'true', next: end}"
        )
        nodes = f"{{start: {{type: start, next: a}}, a: {text}, end: {{type: end}}}}"
        with pytest.raises(InvalidWorkflow, match="next"):
            read(f"workflow_id: x\nnodes: {nodes}", "x.yaml")
        assert f"| `{field}`" not in sections[heading]


@pytest.mark.requirement("H3")
def test_every_installed_handler_is_described_in_the_reference():
    page = script("write_reference").handlers_page()

    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == sorted(handler.name for handler in shipped.REGISTRATIONS)
    assert re.findall(r"^## .+\n\n\n", page, re.MULTILINE) == []
    assert "| `failure_rate` | number, at least 0, at most 1 | `0.2` |" in page
