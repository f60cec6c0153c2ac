"""The handlers that ship, named as strings, so that none of their packages is imported.

Each names its queue: LIGHT for validation, catalogue and bookkeeping; HEAVY for handlers that write pixels or copy
files. Examples name no queue: the workflows that use them do.
"""

from typing import Final

from dagmaster.handlers.registry import Registration

LIGHT: Final = "functionapp-tasks"
HEAVY: Final = "container-tasks"


def _example(name: str, *, is_async: bool = True, function: str | None = None) -> Registration:
    return Registration(name, f"dagmaster.handlers.examples:{function or name}", is_async=is_async)


def _stac(function: str) -> Registration:
    target = f"dagmaster.handlers.stac:{function}"
    return Registration(f"raster.stac_{function}", target, queue=LIGHT, needs_database=True)


def _raster(module: str, function: str, queue: str = HEAVY) -> Registration:
    """Plain handlers, because GDAL may crash, hang, or use up all memory. Those that write a revision first check in
    the database whether their job may write it."""
    target = f"dagmaster.handlers.raster.{module}:{function}"
    return Registration(f"raster.{function}", target, False, queue, needs_database=module != "files")


def _export(module: str, function: str, *, is_async: bool = False, queue: str = LIGHT) -> Registration:
    """Plain handlers by default: copying may block for a long time, so it runs in a child process."""
    target = f"dagmaster.handlers.export.{module}:{function}"
    return Registration(f"export.{function}", target, is_async, queue, needs_database=True)


REGISTRATIONS = (
    _example("echo"),
    _example("hello_world"),
    _example("noop"),
    _example("sleep"),
    _example("sleep_blocking", is_async=False),
    _example("hang", is_async=False),
    _example("fail"),
    _example("flaky_echo"),
    _example("multi_phase", is_async=False),
    _example("size_check"),
    _example("chunk_processor"),
    _example("make_list"),
    _example("collect_results"),
    _example("crash", is_async=False),
    _example("allocate", is_async=False),
    _raster("validate", "validate", LIGHT),
    _raster("validate", "validate_collection", LIGHT),
    _raster("files", "blob_to_mount"),
    _raster("tiles", "generate_tiling_scheme"),
    _raster("tiles", "process_tile"),
    _raster("tiles", "process_tile_batch"),
    _raster("cogs", "create_cog"),
    _raster("stack", "band_stack"),
    _raster("stack", "merge"),
    _raster("mosaic", "create_mosaic"),
    _raster("mosaic", "describe_dataset"),
    _raster("files", "inventory", LIGHT),
    _raster("files", "stac_documents", LIGHT),
    _raster("files", "stac_read_items", LIGHT),
    _stac("ensure_collection"),
    _stac("register_item"),
    _stac("register_items"),
    _stac("finalize"),
    _export("copying", "plan"),
    _export("copying", "transfer", is_async=True),
    _export("copying", "copy", queue=HEAVY),
    _export("copying", "finish"),
    _export("withdrawal", "check"),
    _export("withdrawal", "stop", is_async=True),
    _export("withdrawal", "remove"),
)
