"""The examples on the pages work: workflows can be loaded, errors are those of the loader, handlers run."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import yaml

from dagmaster.errors import InvalidWorkflow
from dagmaster.handlers.registry import Registration, handlers_in, installed
from dagmaster.jobs.fan import ChildResult
from dagmaster.settings import DEFAULT_QUEUES
from dagmaster.testing import Trial, run_handler
from dagmaster.workflows.graph import build
from dagmaster.workflows.load import read, read_with_aliases
from tests.docs.pages import Block, blocks

WORKFLOWS = blocks("yaml workflow")
REFUSED = blocks("yaml refused")
# The guide of the Python client needs a platform; test_python_client_guide runs it.
CLIENTS = ("docs/guides/python-client.md", "docs/guides/integrate-a-platform.md")  # separate tests run them
EXAMPLES = [block for block in blocks("python") if block.page not in CLIENTS]


@pytest.mark.parametrize("block", WORKFLOWS, ids=str)
def test_an_example_workflow_is_accepted(block):
    workflow = read(block.body, str(block), handlers=None, queues=None)

    assert build(workflow).order


@pytest.mark.parametrize("block", WORKFLOWS, ids=str)
def test_an_example_workflow_uses_only_installed_handlers_and_default_queues(block):
    workflow = read(block.body, str(block), handlers=installed(), queues=DEFAULT_QUEUES)

    work = build(workflow).work.values()
    assert {part.handler for part in work} <= set(installed())
    assert {part.queue for part in work} <= {None, *DEFAULT_QUEUES}


@pytest.mark.parametrize("block", blocks("yaml alias"), ids=str)
def test_an_example_of_an_alias_gives_its_workflow_another_name(block):
    named = read(WORKFLOWS[0].body, "named.yaml", handlers=None, queues=None)
    alias = yaml.safe_load(block.body)
    library = {alias["alias_of"]: named}

    workflow = read_with_aliases(block.body.encode(), "alias.yaml", lambda: library, handlers=None, queues=None)

    assert (workflow.workflow_id, workflow.description) == (alias["workflow_id"], alias["description"])
    assert workflow.nodes == named.nodes


def test_every_yaml_block_is_checked():
    assert len(WORKFLOWS) > 8
    assert blocks("yaml", "yml") == []


def test_a_wrong_example_is_detected():
    wrong = WORKFLOWS[0].body.replace("type: end", "type: ende")

    with pytest.raises(InvalidWorkflow):
        read(wrong, "wrong.yaml", handlers=None, queues=None)


@pytest.mark.parametrize("block", REFUSED, ids=str)
def test_shown_errors_are_those_of_the_loader(block):
    every = blocks()
    shown: Block = every[every.index(block) + 1]

    with pytest.raises(InvalidWorkflow) as refused:
        read(block.body, "mistakes.yaml", handlers=None, queues=None)

    assert shown.info == "text"
    assert str(refused.value) == shown.body.strip()


@pytest.fixture(scope="module")
def handlers() -> Iterator[dict[str, Registration]]:
    """Every handler of the examples; each block is imported as a separate module."""
    registrations: dict[str, Registration] = {}
    names = []
    for number, block in enumerate(EXAMPLES):
        module = ModuleType(f"docs_example_{number}")
        names.append(module.__name__)
        sys.modules[module.__name__] = module
        exec(compile(block.body, str(block), "exec"), vars(module))
        marked = (mark for mark in handlers_in(module) if mark.target.startswith(module.__name__))
        registrations |= {mark.name: mark for mark in marked}
    yield registrations
    for name in names:
        del sys.modules[name]


def call(registration: Registration, **params: Any) -> Any:
    return trial(registration, params).output


def trial(registration: Registration, params: dict[str, Any] | None = None, **options: Any) -> Trial:
    return run_handler(registration.resolve(), params, **options)


def test_the_handlers_of_the_examples_return_the_shown_results(handlers):
    assert call(handlers["greetings.hello"], name="Ada") == {"message": "Hello, Ada!"}
    assert len(call(handlers["crypto.digest"], text="a", rounds=3)["digest"]) == 64
    assert call(handlers["geometry.area"], west=0, south=0, east=2, north=3) == {"square_degrees": 6.0}
    assert call(handlers["waiting.for_a_while"], steps=2) == {"steps": 2}


def test_the_tests_of_the_examples_pass(handlers):
    modules = [module for name, module in sys.modules.items() if name.startswith("docs_example_")]
    shown = [value for module in modules for name, value in vars(module).items() if name.startswith("test_")]

    for test in shown:
        test()

    assert shown


def test_every_example_of_a_handler_is_called(handlers):
    assert set(handlers) == {
        "greetings.hello",
        "crypto.digest",
        "geometry.area",
        "files.check",
        "waiting.for_a_while",
        "files.move",
        "orders.wait",
        "numbers.largest",
    }


def test_registrations_of_the_examples_are_as_described(handlers):
    digest = handlers["crypto.digest"]

    assert (digest.queue, digest.timeout_seconds, digest.memory_mb, digest.is_async) == (
        "container-tasks",
        120,
        512,
        False,
    )


def test_the_example_of_errors_gets_the_right_blame(handlers):
    assert trial(handlers["files.check"], {"name": "a.tif"}).blame == "environment"
    assert trial(handlers["files.check"], {"name": "a.tif", "size_bytes": 0}).blame == "data"
    assert "params.text" in trial(handlers["crypto.digest"], {"rounds": 3}).error["message"]


def test_the_example_of_checkpoints_continues_after_the_last_valid_one(handlers, tmp_path):
    params = {"folder": str(tmp_path)}
    whole = trial(handlers["files.move"], params)
    for file in tmp_path.glob("*load"):
        file.unlink()

    done = trial(handlers["files.move"], params, after=whole)

    assert whole.output == {"phases_run": ["download", "convert", "upload"]}
    assert done.output == {"phases_run": ["upload"]}


def test_the_example_of_waiting_orders_once(handlers):
    first = trial(handlers["orders.wait"], {"what": "a map"})
    second = trial(handlers["orders.wait"], {"what": "another map"}, after=first)

    assert first.output["order"].startswith("order of a map for ")
    assert second.output == first.output


def test_the_example_of_stopping_early_gives_its_task_back(handlers):
    assert trial(handlers["waiting.for_a_while"], {"steps": 2}, shutting_down_after=1).status == "returned"


def test_the_example_of_results_skips_failures(handlers):
    results = [{"value": 3}, ChildResult(1, "a__1", "failed", None, "it broke"), {"value": 5}]

    assert trial(handlers["numbers.largest"], results=results).output == {"largest": 5}
