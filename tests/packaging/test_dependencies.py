"""The code imports exactly the libraries that pyproject.toml declares, for the base installation and each extra."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dagmaster.extras import missing_extra
from tests.packaging.environments import ROOT, closure

SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# The packages of this project that each extra is for. They may import other packages if its dependencies allow it.
ROOTS = {
    "orchestrator": (
        *("orchestrator", "transports", "operations", "commands", "database", "api", "web", "ui", "local", "doctor"),
        "roles",
    ),
    "worker": ("worker", "handlers", "raster", "stac", "storage"),
    "serving": ("serving",),
    "gateway": ("gateway", "web"),
}
# The packages and modules that the client and the command line use, and the module of them that needs an extra.
CLIENT = ("client", "cli", "access", "jobs", "assets", "callbacks", "library", "workflows", "observe")
CLIENT_MODULES = ("dagmaster.handlers.registry", "dagmaster.doctor.machine", "dagmaster.local.discovery")
DIRECT = SOURCE / "dagmaster" / "cli" / "direct_schema.py"
# Modules of observe/ that only servers import.
OF_SERVERS = {SOURCE / "dagmaster/observe" / name for name in ("metrics.py", "probes.py")}
# Modules of these packages that need another extra.
OPTIONAL = {
    "azure": {
        *(
            SOURCE / "dagmaster/storage" / name
            for name in ("azure.py", "azure_account.py", "azure_sas.py", "objects.py")
        ),
        SOURCE / "dagmaster/transports/servicebus_client.py",
    },
    "s3": {SOURCE / "dagmaster/storage" / name for name in ("s3.py", "objects.py")},
    "otel": {SOURCE / "dagmaster/observe/traces.py"},
    "dask": {SOURCE / "dagmaster/worker/executors" / name for name in ("dask.py", "dask_agent.py")},
}
# Distributions that share a namespace package, by the module below it.
SHARED = {
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry": "opentelemetry-api",
    "azure.servicebus": "azure-servicebus",
}


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def declared(extra: str | None) -> set[str]:
    return names(PROJECT["dependencies"]) | (names(EXTRAS[extra]) if extra else set())


@cache
def distributions() -> dict[str, set[str]]:
    return {
        name: {canonicalize_name(each) for each in names} for name, names in metadata.packages_distributions().items()
    }


def imports(path: Path, *, at_start_only: bool = False) -> Iterator[str]:
    """The modules that a file imports; those inside functions and under TYPE_CHECKING only on request."""
    yield from _imports(path, at_start_only)


@cache
def _imports(path: Path, at_start_only: bool) -> tuple[str, ...]:
    return tuple(_imported_modules(ast.parse(path.read_text()), at_start_only))


def _imported_modules(tree: ast.AST, at_start_only: bool) -> Iterator[str]:
    for node in _at_start(tree) if at_start_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module.startswith("dagmaster"))


def _at_start(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_for_types:
            yield node
            yield from _at_start(node)


@cache
def file_of(module: str) -> Path | None:
    path = SOURCE.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def third_party(files: set[Path], *, at_start_only: bool = False, follows: bool = False) -> dict[str, str]:
    """The distributions that files import, each with one of the files; with `follows`, also the modules they import."""
    pending, seen, needed = list(files), set(files), {}
    while pending:
        file = pending.pop()
        for module in imports(file, at_start_only=at_start_only):
            top = module.partition(".")[0]
            if top == "dagmaster":
                other = file_of(module)
                if follows and other and other not in seen:
                    seen.add(other)
                    pending.append(other)
            elif top not in sys.stdlib_module_names:
                needed.update(dict.fromkeys(distributions_of(module), file.relative_to(SOURCE).as_posix()))
    return needed


def distributions_of(module: str) -> set[str]:
    """The distributions that may contain a module."""
    for beginning, name in SHARED.items():
        if f"{module}.".startswith(f"{beginning}."):
            return {name}
    top = module.partition(".")[0]
    names = distributions().get(top, {canonicalize_name(top)})
    return {name for name in names if name.replace("-", ".") in module.replace("_", ".")} or names


def files_of(*packages: str) -> set[Path]:
    return {file for package in packages for file in (SOURCE / "dagmaster" / package).rglob("*.py")}


def undeclared(needed: dict[str, str], extra: str | None) -> dict[str, str]:
    return {name: file for name, file in needed.items() if name not in declared(extra)}


def client_files() -> set[Path]:
    return {*files_of(*CLIENT), *filter(None, map(file_of, CLIENT_MODULES))} - {DIRECT} - OF_SERVERS


def test_the_client_and_the_command_line_need_no_extra():
    assert undeclared(third_party(client_files(), at_start_only=True, follows=True), None) == {}


def test_the_base_installation_declares_no_unused_libraries():
    assert names(PROJECT["dependencies"]) - third_party(client_files()).keys() <= {
        "annotated-types",
        "pydantic-settings",
    }
    assert names(PROJECT["dependencies"]) - third_party(client_files(), follows=True).keys() == set()


def test_libraries_that_a_command_imports_later_belong_to_an_extra():
    everything = set().union(*(declared(extra) for extra in EXTRAS))

    assert third_party(files_of(*CLIENT)).keys() - everything == set()


@pytest.mark.parametrize("extra", ROOTS)
def test_an_extra_declares_all_libraries_that_its_packages_import(extra):
    """This includes the imports of other packages that they import when they are loaded."""
    files = files_of(*ROOTS[extra]) - set().union(*OPTIONAL.values())
    needed = third_party(files, follows=True, at_start_only=True) | third_party(files)

    assert undeclared(needed, extra) == {}


@pytest.mark.parametrize("extra", sorted(OPTIONAL))
def test_an_extra_for_some_modules_declares_exactly_the_libraries_that_they_import(extra):
    needed = third_party(OPTIONAL[extra])

    assert undeclared(needed, extra) == {}
    assert names(EXTRAS[extra]) - needed.keys() == set()


@pytest.mark.parametrize("extra", ROOTS)
def test_an_extra_declares_no_unused_libraries(extra):
    used = third_party(files_of(*ROOTS[extra], *(["storage"] if extra == "serving" else [])), follows=True).keys()
    # Only its files are served; its module is not imported.
    as_files = {"fastapi-offline"} if extra == "orchestrator" else set()

    assert names(EXTRAS[extra]) - used - as_files == set()


@pytest.mark.parametrize("extra", ["orchestrator", "gateway"])
def test_orchestrators_and_gateways_are_installed_without_gdal(extra):
    geospatial = {"rasterio", "numpy", "shapely", "pyproj", "titiler-core", "rio-tiler", "obstore"}

    assert closure([Requirement(line) for line in PROJECT["dependencies"] + EXTRAS[extra]], ()) & geospatial == set()


def test_a_library_has_the_same_bounds_in_every_extra():
    bounds: dict[str, set[str]] = {}
    for line in (line for lines in [PROJECT["dependencies"], *EXTRAS.values()] for line in lines):
        bounds.setdefault(canonicalize_name(Requirement(line).name), set()).add(line)

    assert {name: lines for name, lines in bounds.items() if len(lines) > 1} == {}


def test_the_extra_all_includes_every_other_extra():
    (everything,) = map(Requirement, EXTRAS["all"])

    assert everything.name == PROJECT["name"]
    assert everything.extras == EXTRAS.keys() - {"all"}


@pytest.mark.parametrize("name", ["base", "dev"])
def test_the_lock_file_has_every_declared_library_in_an_allowed_version(name):
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    locked = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)", text, re.MULTILINE)
    required = [Requirement(line) for lines in [PROJECT["dependencies"], *EXTRAS.values()] for line in lines]
    for requirement in required:
        if requirement.name == "dagmaster":
            continue
        name_in_lock = canonicalize_name(requirement.name)
        versions = [version for each, version in locked if canonicalize_name(each) == name_in_lock]
        assert versions, requirement
        assert all(requirement.specifier.contains(version) for version in versions), requirement
        block = text.partition(f"\n{name_in_lock}==")[2].partition("==")[0]
        assert "dagmaster (pyproject.toml)" in block or not block, f"{requirement}: run `make lock`"


@pytest.mark.parametrize("role", ROOTS)
def test_the_lock_file_of_a_role_has_all_its_libraries_in_the_versions_of_the_base(role):
    everything, locked = locked_in("base"), locked_in(role)
    required = [Requirement(line) for line in PROJECT["dependencies"] + EXTRAS[role]]

    assert locked < everything, "run `make lock`"
    # Packages that only other systems or versions of Python need are locked too.
    assert closure(required, ()) <= {canonicalize_name(line.partition("==")[0]) for line in locked}, "run `make lock`"


def locked_in(name: str) -> set[str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    lines = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)", text, re.MULTILINE)
    return {f"{canonicalize_name(package)}=={version}" for package, version in lines}


# Modules that are documented by their libraries. Top-level packages are assumed to be documented.
DOCUMENTED = {
    *("alembic.autogenerate", "alembic.ddl.base", "alembic.runtime.migration"),
    *("botocore.config", "botocore.exceptions", "botocore.session"),
    *("anyio.to_thread", "click.shell_completion", "cogeo_mosaic.mosaic", "morecantile.defaults", "numpy.typing"),
    *("obstore.store", "packaging.licenses", "pydantic.fields", "shapely.geometry"),
    *("rich.console", "rich.live", "rich.progress", "rich.progress_bar", "rich.table", "rich.text"),
    *("sqlalchemy.dialects", "sqlalchemy.schema", "sqlalchemy.types"),
    *("stac_fastapi.extensions", "stac_fastapi.extensions.query", "stac_fastapi.extensions.sort"),
    *("stac_fastapi.types.errors", "starlette.concurrency", "starlette.datastructures", "starlette.exceptions"),
    *("starlette.middleware.cors", "starlette.requests", "starlette.responses", "starlette.routing"),
    *("starlette.templating", "starlette.types"),
    *("azure.servicebus.aio", "azure.servicebus.exceptions", "distributed.security"),
    *("opentelemetry.context", "opentelemetry.trace", "opentelemetry.sdk.resources", "opentelemetry.sdk.trace"),
    *("opentelemetry.sdk.trace.export", "opentelemetry.sdk.trace.sampling"),
    *("opentelemetry.exporter.otlp.proto.http.trace_exporter", "prometheus_client.core", "prometheus_client.registry"),
}


def undocumented(files: Iterable[Path]) -> dict[str, set[str]]:
    """The modules below the top level that files import and that are not known to be documented, by distribution."""
    modules = {module for file in files for module in imports(file) if "." in module} - DOCUMENTED
    needed: dict[str, set[str]] = {}
    for module in modules:
        top = module.partition(".")[0]
        if top == "dagmaster" or top in sys.stdlib_module_names:
            continue
        for name in distributions_of(module):
            needed.setdefault(name, set()).add(module)
    return needed


def has_upper_bound(requirement: Requirement) -> bool:
    return any(each.operator in {"<", "==", "~="} for each in requirement.specifier)


def test_a_library_whose_undocumented_modules_are_imported_has_an_upper_bound():
    needed = undocumented((SOURCE / "dagmaster").rglob("*.py"))
    required = [Requirement(line) for lines in [PROJECT["dependencies"], *EXTRAS.values()] for line in lines]
    bounded = {canonicalize_name(each.name) for each in required if has_upper_bound(each)}
    unbounded = {canonicalize_name(each.name) for each in required if not has_upper_bound(each)}

    assert {name: modules for name, modules in needed.items() if name in unbounded or name not in bounded} == {}
    # Only the top level of h11 is imported, but its version must be the one that uvicorn's protocol uses.
    assert {"rasterio", "uvicorn", "h11", "jinja2", "rio-tiler", "psycopg", "fastapi"} <= bounded


def test_an_import_of_an_undocumented_module_is_detected(tmp_path):
    file = tmp_path / "x.py"
    file.write_text(
        "from uvicorn.protocols.http.h11_impl import H11Protocol\n"
        "def later():\n    import click.parser\n    from rich.table import Table\n    import click, os.path\n"
    )

    assert undocumented([file]) == {"uvicorn": {"uvicorn.protocols.http.h11_impl"}, "click": {"click.parser"}}


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("rasterio.crs", "all"),
        ("fastapi", "all"),
        ("alembic", "orchestrator"),
        ("shapely", "worker"),
        ("titiler.core", "serving"),
        ("attr", "serving"),
        ("attrs", "serving"),
    ],
)
def test_the_error_for_a_missing_module_names_its_extra(module, extra, monkeypatch):
    lines = [f"{line} ; extra == '{name}'" for name, lines in EXTRAS.items() for line in lines]
    monkeypatch.setattr("dagmaster.extras.metadata.requires", lambda _: [*PROJECT["dependencies"], *lines])
    error = missing_extra(ModuleNotFoundError(f"No module named '{module}'", name=module))

    assert error is not None
    assert error.hint == f"pip install 'dagmaster[{extra}]'"


@pytest.mark.parametrize(
    ("module", "preferred", "extra"),
    [
        ("psycopg", "gateway", "gateway"),
        ("psycopg_pool", "worker", "worker"),
        ("jwt.exceptions", "orchestrator", "orchestrator"),
        ("fastapi", "worker", "all"),
        ("rasterio", "gateway", "all"),
        ("shapely", "gateway", "worker"),
    ],
)
def test_the_preferred_extra_is_named_if_it_has_the_module(module, preferred, extra, monkeypatch):
    lines = [f"{line} ; extra == '{name}'" for name, lines in EXTRAS.items() for line in lines]
    monkeypatch.setattr("dagmaster.extras.metadata.requires", lambda _: [*PROJECT["dependencies"], *lines])
    error = missing_extra(ModuleNotFoundError(f"No module named '{module}'", name=module), preferred)

    assert error is not None
    assert error.hint == f"pip install 'dagmaster[{extra}]'"


@pytest.mark.parametrize("module", ["dagmaster.nothing", "click", "geopandas", None])
def test_errors_for_other_missing_modules_are_not_changed(module):
    assert missing_extra(ModuleNotFoundError("x", name=module)) is None
