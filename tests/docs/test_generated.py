"""Generated pages are what they would be if they were generated now."""

import importlib.util
from types import ModuleType

import pytest

from dagmaster.jobs import states
from dagmaster.jobs.diagrams import JOB, NODE, TASK, LifeCycle, mermaid
from dagmaster.settings import Settings
from tests.docs.pages import ROOT


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["draw_states", "list_settings"])
def test_a_generated_page_is_up_to_date(name):
    generator = script(name)

    assert generator.PAGE.read_text() == generator.render(), f"run .venv/bin/python scripts/{name}.py"
    assert generator.main(["--check"]) == 0


@pytest.mark.parametrize("name", ["draw_states", "list_settings"])
def test_a_stale_page_is_noticed_and_renewed(name, tmp_path):
    generator = script(name)
    generator.PAGE = tmp_path / "page.md"
    generator.PAGE.write_text(generator.render() + "an old line\n")

    assert generator.main(["--check"]) == 1
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("cycle", "moves", "revivals"),
    [
        (JOB, states.JOB_MOVES, states.JOB_REVIVALS),
        (NODE, states.NODE_MOVES, states.NODE_REVIVALS),
        (TASK, states.TASK_MOVES, {}),
    ],
    ids=lambda value: value.name if isinstance(value, LifeCycle) else "",
)
def test_a_diagram_has_exactly_the_moves_of_its_table(cycle, moves, revivals):
    arrows = {
        tuple(line.split(" : ")[0].strip().split(" --> ")) for line in mermaid(cycle).splitlines() if "-->" in line
    }

    drawn = {arrow for arrow in arrows if "[*]" not in arrow}

    pairs = {(str(state), str(target)) for table in (moves, revivals) for state in table for target in table[state]}
    assert drawn == pairs
    assert {target for source, target in arrows if source == "[*]"} == set(cycle.initial)
    assert {source for source, target in arrows if target == "[*]"} == set(cycle.terminal)


def test_another_table_gives_another_diagram():
    fewer = {**states.TASK_MOVES, states.TaskStatus.QUEUED: frozenset({states.TaskStatus.RUNNING})}

    changed = LifeCycle("task", TASK.initial, fewer, TASK.terminal, {})

    assert "queued --> cancelled" in mermaid(TASK)
    assert "queued --> cancelled" not in mermaid(changed)


def test_every_state_is_explained():
    meanings = script("draw_states").MEANINGS

    assert {cycle.name: list(meanings[cycle.name]) for cycle in (JOB, NODE, TASK)} == {
        cycle.name: list(cycle.states) for cycle in (JOB, NODE, TASK)
    }


def test_m2_every_setting_is_explained():
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
