"""The options of `dagmaster process`, checked before anything is done, and converted to inputs of a job."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagmaster.dataset_ids import dataset_id_from, require_dataset_id
from dagmaster.errors import InvalidRequest
from dagmaster.ingest.bronze import blob_name
from dagmaster.ingest.sources import LocalFile
from dagmaster.workflows.raster import RASTER_COLLECTION, tile_limit_of, workflow_for_files

if TYPE_CHECKING:
    from dagmaster.handlers.raster.options import Options
    from dagmaster.stac.values import Provider


def workflow_for(count: int, chosen: str | None, tile_size: int | None) -> str:
    """The given workflow, or the default one for this number of files."""
    workflow = chosen or workflow_for_files(count)
    if count > 1 and workflow != RASTER_COLLECTION:
        raise InvalidRequest(
            f"--workflow {workflow} takes one file, not {count}",
            code="process.one-file",
            hint="leave out --workflow, or process the files one by one",
        )
    if workflow == RASTER_COLLECTION and tile_size:
        raise InvalidRequest(
            "--tile-size applies to a single file: each file of a collection becomes one COG",
            code="process.tile-size",
            hint="leave it out",
        )
    return workflow


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with licence, keywords and providers as the job needs them; None for options that are not given."""
    from dagmaster.stac.validate import require_license, require_providers
    from dagmaster.stac.when import parse_when

    providers = [_provider(text) for text in options["providers"]]
    require_providers(providers)
    keywords = [word.strip() for text in options["keywords"] for word in text.split(",")]
    described = {
        "license": require_license(options["license"]) if options["license"] else None,
        "keywords": list(dict.fromkeys(filter(None, keywords))) or None,
        "providers": [_provider_input(provider) for provider in providers] or None,
    }
    if options["dataset_id"]:
        require_dataset_id(options["dataset_id"])
    if options["datetime"]:
        parse_when(options["datetime"])
    _require_crs(options["source_crs"], options["target_crs"])
    return {**options, **described}


def _provider(text: str) -> "Provider":
    """A provider from `NAME;ROLE,ROLE;URL`."""
    from dagmaster.stac.values import Provider

    name, roles, url, *more = [part.strip() for part in f"{text};;".split(";")]
    if any(more):
        hint = (
            "write NAME;ROLES;URL, for example --provider 'swisstopo;producer,licensor;https://www.swisstopo.admin.ch'"
        )
        raise InvalidRequest(f"--provider '{text}' has too many parts", code="stac.provider", hint=hint)
    return Provider(name, tuple(role.strip().lower() for role in roles.split(",") if role.strip()), url or None)


def _provider_input(provider: "Provider") -> dict[str, Any]:
    facts = {"name": provider.name, "roles": list(provider.roles), "url": provider.url}
    return {name: value for name, value in facts.items() if value}


def _require_crs(*names: str | None) -> None:
    if not any(names):
        return
    from rasterio import Env

    from dagmaster.raster.source.crs import parse_crs

    with Env():  # otherwise GDAL writes to standard error
        for name in filter(None, names):
            parse_crs(name)


def raster_options(workflow: str, options: Mapping[str, Any]) -> "Options":
    """The options in the form that the handlers of a workflow use."""
    from dagmaster.handlers.raster.options import Options

    chosen = {name: options[name] for name in ("target_crs", "tile_size", "output_tier") if options[name] is not None}
    return Options(**chosen, tile_above_mb=tile_limit_of(workflow, chosen))


def dataset_name(name: str | None, arguments: Sequence[str], files: Sequence[LocalFile]) -> str:
    """The given name, or that of the folder if it is the only argument, or that of the first file."""
    folder = Path(arguments[0])
    if not name and len(arguments) == 1 and folder.is_dir():
        name = dataset_id_from(folder.resolve().name)
    try:
        chosen = name or dataset_id_from(Path(blob_name(files[0].path)).stem)
        require_dataset_id(chosen)
    except InvalidRequest as error:
        hint = error.hint if name else "give a name with --dataset"
        raise InvalidRequest(error.message, code=error.code, hint=hint) from None
    return chosen
