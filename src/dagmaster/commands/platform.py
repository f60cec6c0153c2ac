"""The installation: migrate its schema, and make all orchestrators reload their workflows."""

import asyncio

from dagmaster.access.permissions import Permission
from dagmaster.client.models.commands import CacheReader, InvalidateCommand, InvalidateResult, MigrateCommand
from dagmaster.client.models.schema import MigrationResult
from dagmaster.commands.registry import CommandContext, command
from dagmaster.database.caches import PostgresCaches
from dagmaster.operations.schema import migrate_schema

_POLL_SECONDS = 0.1
_migrations: set[asyncio.Task[MigrationResult]] = set()  # they continue if their caller gives up


@command("schema.migrate", Permission.SCHEMA_WRITE)
async def migrate(context: CommandContext, request: MigrateCommand) -> MigrationResult:
    """Migrate the schema of the database, while the platform runs.

    A migration that takes longer than the time limit continues; the next run waits for it."""
    task = asyncio.create_task(_migrate_and_record(context, request))
    _migrations.add(task)
    task.add_done_callback(_migrations.discard)
    return await asyncio.shield(task)


async def _migrate_and_record(context: CommandContext, request: MigrateCommand) -> MigrationResult:
    result = await asyncio.to_thread(migrate_schema, context.dsn)
    await context.store.record(context.decision(reason=request.reason, changes=result.changes[:100]))
    return result


@command("cache.invalidate", Permission.PLATFORM_OPERATE)
async def invalidate(context: CommandContext, request: InvalidateCommand) -> InvalidateResult:
    """Make all orchestrators reload their workflows.

    The result lists the live orchestrators, and whether each has reloaded them. Jobs keep the definition that they were
    submitted with."""
    decision = context.decision(reason=request.reason, cache=request.cache)
    generation = await context.store.invalidate_workflows(decision)
    caches = PostgresCaches(context.dsn, "cache-command")
    try:
        instances = await _wait_until_reloaded(
            caches, generation, context.settings.orphan_threshold_sec, request.wait_seconds
        )
    finally:
        await caches.close()
    return InvalidateResult(
        cache=request.cache,
        generation=generation,
        is_complete=all(instance.is_reloaded for instance in instances),
        instances=instances,
    )


async def _wait_until_reloaded(
    caches: PostgresCaches, generation: int, alive_seconds: float, wait_seconds: float
) -> list[CacheReader]:
    """The live instances, as soon as all have read the generation, or after `wait_seconds`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    while True:
        instances = await caches.readers(generation, alive_seconds)
        if all(instance.is_reloaded for instance in instances) or loop.time() >= deadline:
            return instances
        await asyncio.sleep(_POLL_SECONDS)
