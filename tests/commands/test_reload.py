"""All instances reload the workflows when the cache is invalidated."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dagmaster.database.caches import PostgresCaches
from dagmaster.errors import NotFound
from dagmaster.handlers.registry import installed
from dagmaster.library.workflows import WorkflowLibrary, limits_of, workflow_files
from dagmaster.orchestrator.reload import WorkflowReload
from dagmaster.settings import Settings
from dagmaster.workflows.load import read_all
from tests.commands.kit import Commands
from tests.engine.harness import until

pytestmark = pytest.mark.requirement("O2")

TEXT = """workflow_id: {name}
nodes:
  start: {{type: start, next: only}}
  only: {{handler: hello_world, params: {{name: you}}, next: end}}
  end: {{type: end}}
"""
HANDLERS = installed()
INSTANCE = "INSERT INTO dagapp.orchestrators (owner_id, host, pid, software_version) VALUES (%s, 'here', 1, '1')"


class Instance:
    """The parts of an orchestrator that load its workflows."""

    def __init__(self, dsn: str, folder: Path, interval_seconds: float) -> None:
        self.folder = folder
        self.settings = Settings(workflow_folders=str(folder))
        self.library: WorkflowLibrary = self.load()
        caches = PostgresCaches(dsn, "test")
        self.reload = WorkflowReload(caches, self.load, interval_seconds, self.use, uuid4(), self.library)

    def load(self) -> WorkflowLibrary:
        rules = {"limits": limits_of(self.settings), "handlers": HANDLERS, "queues": self.settings.known_queues}
        loaded = read_all(workflow_files(self.folder), **rules)
        return WorkflowLibrary(dict(loaded.workflows), tuple(loaded.refused))

    def use(self, library: WorkflowLibrary) -> None:
        self.library = library


@asynccontextmanager
async def instances(commands: Commands, folder: Path, count: int = 2, interval_seconds: float = 0.1) -> Any:
    running = [Instance(commands.kit.dsn, folder, interval_seconds) for _ in range(count)]
    for instance in running:
        await commands.kit.execute(INSTANCE, instance.reload.owner_id)
    tasks = [asyncio.create_task(instance.reload.run()) for instance in running]
    try:
        yield running
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for instance in running:
            await instance.reload.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "workflows"
    folder.mkdir()
    return folder


async def test_every_instance_reads_new_and_changed_workflows(commands: Commands, folder: Path):
    async with instances(commands, folder) as running:
        (folder / "mine.yaml").write_text(TEXT.format(name="mine"))
        unseen = ["mine" in instance.library.workflows for instance in running]

        result = await commands.run("cache.invalidate", wait_seconds=8)

        assert unseen == [False, False]
        assert ["mine" in instance.library.workflows for instance in running] == [True, True]
    assert result.is_complete
    assert [instance.is_reloaded for instance in result.instances] == [True, True]
    assert {instance.instance_id for instance in result.instances} == {each.reload.owner_id for each in running}
    assert {instance.workflow_count for instance in result.instances} == {len(running[0].library.workflows)}
    assert {instance.workflows_refused for instance in result.instances} == {0}


async def test_an_instance_that_has_not_reloaded_the_workflows_is_reported(commands: Commands, folder: Path):
    silent = uuid4()
    async with instances(commands, folder, 1) as (instance,):
        await commands.run("cache.invalidate", wait_seconds=8)
        await commands.kit.execute(INSTANCE, silent)
        instance.reload.interval_seconds = 0.02
        result = await commands.run("cache.invalidate", wait_seconds=3)

    shown = {instance.instance_id: instance.is_reloaded for instance in result.instances}
    assert shown == {silent: False, instance.reload.owner_id: True}
    assert not result.is_complete


async def test_a_refused_file_is_counted_and_the_others_are_used(commands: Commands, folder: Path):
    async with instances(commands, folder, 1) as (instance,):
        (folder / "good.yaml").write_text(TEXT.format(name="good"))
        (folder / "bad.yaml").write_text("workflow_id: [")
        result = await commands.run("cache.invalidate", wait_seconds=8)

    assert result.instances[0].workflows_refused == 1
    assert "good" in instance.library.workflows


async def test_workflows_stay_in_use_while_the_files_cannot_be_read(commands: Commands, folder: Path):
    async with instances(commands, folder, 1) as (instance,):
        await until(lambda: asyncio.sleep(0, instance.reload.generation is not None))
        before = instance.library
        folder.rename(folder.with_name("moved"))
        broken = await commands.run("cache.invalidate", wait_seconds=1)
        kept = instance.library
        folder.with_name("moved").rename(folder)
        whole = await commands.run("cache.invalidate", wait_seconds=8)

    assert before is kept
    assert (broken.is_complete, whole.is_complete) == (False, True)
    with pytest.raises(NotFound):
        Instance(commands.kit.dsn, folder.with_name("moved"), 1)


async def test_a_notification_reloads_the_workflows_before_the_next_interval(commands: Commands, folder: Path):
    async with instances(commands, folder, 1, interval_seconds=3600) as (instance,):
        await until(lambda: asyncio.sleep(0, instance.reload.generation is not None))
        missed = await commands.run("cache.invalidate", wait_seconds=0.5)
        instance.reload.wake()
        await until(lambda: asyncio.sleep(0, instance.reload.generation == missed.generation))

    assert not missed.is_complete
