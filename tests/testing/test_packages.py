"""Packages add handlers and workflows; a broken package is reported and does not affect the others."""

import sys

import pytest

from dagmaster.errors import NotFound
from dagmaster.handlers import shipped
from dagmaster.handlers.registry import installed
from dagmaster.library.workflows import load_library
from dagmaster.local.embedded import Cluster
from dagmaster.settings import load
from tests.cli.processes import call, up
from tests.conftest import fresh_database
from tests.engine.processes import fleet
from tests.testing.packages import install_example, write_package

pytestmark = pytest.mark.requirement("H1")

MARKED = """
from dagmaster.handlers.registry import register_handler

@register_handler("{name}")
async def handler(ctx):
    return "{name}"
"""
WORKFLOW = """
workflow_id: {name}
nodes:
  start: {{type: start, next: work}}
  work: {{handler: {handler}, next: end}}
  end: {{type: end}}
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder for packages, on the import path of this process."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def catalog(site):
    def read():
        settings = load()
        return load_library(settings, installed(), settings.known_queues)

    return read


def good(site, name="good_package"):
    files = {
        "handlers.py": MARKED.format(name="good.work"),
        "good.yaml": WORKFLOW.format(name="good", handler="good.work"),
    }
    write_package(site, name, files, handlers=f"{name}.handlers", workflows=name)


def test_a_package_adds_handlers_and_workflows(site, catalog):
    good(site)

    assert installed()["good.work"].target == "good_package.handlers:handler"
    assert "good" in catalog().workflows
    assert installed().refused == []
    assert catalog().refused == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("def broken(:", "SyntaxError"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("raise SystemExit('not on this machine')", "SystemExit: not on this machine"),
        ("REGISTRATIONS = ('a name',)", "not a Registration"),
    ],
)
def test_handlers_that_cannot_be_loaded_are_reported_and_do_not_affect_others(site, catalog, capsys, text, message):
    write_package(site, "bad_package", {"handlers.py": text}, handlers="bad_package.handlers")
    good(site)

    handlers = installed()

    assert "good.work" in handlers
    (problem,) = handlers.refused
    assert problem.startswith("entry point dagmaster.handlers: bad_package = bad_package.handlers (of bad_package): ")
    assert message in problem
    assert message in capsys.readouterr().out
    assert "good" in catalog().workflows


def test_an_entry_point_without_a_target_is_reported(site):
    write_package(site, "bad_package", {}, handlers="bad_package.handlers:nothing", workflows="no_such_package")
    write_package(site, "worse_package", {}, workflows="worse_package")
    settings = load()

    refused = [error.message for error in load_library(settings, installed(), settings.known_queues).refused]

    assert len(installed().refused) == 1
    assert "no_such_package" in refused[0]
    assert "worse_package" in refused[1]
    assert "no .yaml or .yml files" in refused[1]


def test_only_the_handlers_whose_name_is_taken_are_refused(site):
    two = MARKED.format(name="echo") + MARKED.format(name="mine.echo").replace("async def handler", "async def other")
    write_package(site, "clashing", {"handlers.py": two}, handlers="clashing.handlers")

    handlers = installed()

    assert handlers["echo"].target == next(r.target for r in shipped.REGISTRATIONS if r.name == "echo")
    assert "mine.echo" in handlers
    (problem,) = handlers.refused
    assert "two handlers are named 'echo'" in problem
    assert "clashing.handlers:handler" in problem


def test_the_choice_between_packages_with_the_same_handler_name_is_deterministic(site):
    for name in ("b_package", "a_package", "c_package"):
        files = {"handlers.py": MARKED.format(name="shared.work")}
        write_package(site, name, files, handlers=f"{name}.handlers")

    assert installed()["shared.work"].target == "a_package.handlers:handler"
    assert len(installed().refused) == 2


def test_invalid_workflows_of_a_package_do_not_affect_its_valid_ones(site, catalog):
    files = {
        "bad.yaml": WORKFLOW.format(name="bad", handler="echo").replace("type: end", "type: ende"),
        "fine.yml": WORKFLOW.format(name="fine", handler="echo"),
        "taken.yaml": WORKFLOW.format(name="hello_world", handler="echo"),
        "needy.yaml": WORKFLOW.format(name="needy", handler="no.such.handler"),
    }
    write_package(site, "mixed", files, workflows="mixed")

    library = catalog()

    assert "fine" in library.workflows
    messages = "\n".join(error.message for error in library.refused)
    assert len(library.refused) == 3
    assert f"{site}/mixed/bad.yaml:6:3: node 'end'" in messages
    assert f"{site}/mixed/taken.yaml: workflow_id 'hello_world' is already taken" in messages
    assert "no.such.handler" in messages


def test_the_error_for_a_refused_workflow_has_the_reason(site, catalog):
    files = {"bad.yaml": WORKFLOW.format(name="bad", handler="echo").replace("type: end", "type: ende")}
    write_package(site, "mixed", files, workflows="mixed")

    with pytest.raises(NotFound, match=r"bad\.yaml:6:3"):
        catalog().get("bad")


def test_workflows_can_be_in_a_folder_that_is_not_a_python_package(site, catalog):
    files = {"flows/one.yaml": WORKFLOW.format(name="one", handler="echo")}
    write_package(site, "nested", files, workflows="nested.flows")

    assert "one" in catalog().workflows


# The example package in real processes


def test_orchestrator_worker_and_command_line_use_an_installed_package(cluster: Cluster, tmp_path):
    site = install_example(tmp_path / "site", tmp_path)
    write_package(site, "half_package", {"bad.yaml": "workflow_id: half"}, workflows="half_package")
    path = {"PYTHONPATH": str(site), "DAGMASTER_DATA": str(tmp_path / "data")}

    with (
        fresh_database(cluster, "template0") as dsn,
        up(tmp_path / "data", DATABASE_URL=dsn, API_PORT="0", **path) as platform,
    ):
        listed = call("workflows", "ls", **path)
        job = call("submit", "river_length", "-p", "river=Po", "--wait", **path)
        failed = call("submit", "river_length", "-p", "river=Styx", "--wait", **path)
        refused = call("submit", "half", **path)
        _, _, stderr = platform.end()

    assert "river_length" in listed.stdout, listed.stderr
    assert job.returncode == 0, job.stderr
    assert "434.7" in job.stdout
    assert failed.returncode == 1
    assert "no river is named Styx" in failed.stdout + failed.stderr
    assert refused.returncode == 4
    assert "bad.yaml" in refused.stderr  # only the name of the file, without its folder
    assert "half_package/bad.yaml" in stderr


async def test_broken_packages_are_reported_and_do_not_affect_others(database, tmp_path):
    site = install_example(tmp_path / "path", tmp_path)
    write_package(site, "bad_package", {"handlers.py": "import no_such_library"}, handlers="bad_package.handlers")
    write_package(site, "clashing", {"handlers.py": MARKED.format(name="echo")}, handlers="clashing.handlers")
    write_package(site, "half_package", {"bad.yaml": "workflow_id: half"}, workflows="half_package")

    async with fleet(database, tmp_path, orchestrators=1, workers=1) as running:
        definition = (site / "rivers/workflows/river_length.yaml").read_text()
        job_id = await running.submit_one(definition, river="Loire")
        assert await running.wait(job_id) == ["completed"]
        orchestrator, worker = (process.log.read_text() for process in running.processes)

    for log in (orchestrator, worker):
        assert "No module named 'no_such_library'" in log
        assert "two handlers are named 'echo'" in log
    assert "half_package/bad.yaml" in orchestrator
