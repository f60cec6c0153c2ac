"""Clean environments that contain exactly the dependencies of given extras of the wheel, created without a network."""

import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent


def build_wheel(folder: Path) -> Path:
    """The wheel, as `pip install` would build it from this checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = folder.glob("*.whl")
    return wheel


def declared(wheel: Path) -> list[Requirement]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().split("\n\n")[0].splitlines()
    return [Requirement(line.partition(": ")[2]) for line in lines if line.startswith("Requires-Dist: ")]


def environment(folder: Path, wheel: Path, *extras: str) -> Path:
    """A virtual environment with the wheel and its dependencies; returns its Python.

    Dependencies are links to the installed ones. Nothing else of this environment can be imported.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in closure(declared(wheel), extras):
        for entry in _entries(name):
            if not (site / entry.name).exists():  # distributions may share a namespace package
                (site / entry.name).symlink_to(entry)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return folder / "bin" / "python"


def closure(requirements: Iterable[Requirement], extras: Iterable[str]) -> set[str]:
    """The names of everything that is installed with these requirements."""
    pending = [(requirement, frozenset(extras)) for requirement in requirements]
    names: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    while pending:
        requirement, active = pending.pop()
        contexts = [{"extra": extra} for extra in (active or {""})]
        if requirement.marker and not any(requirement.marker.evaluate(context) for context in contexts):
            continue
        name = canonicalize_name(requirement.name)
        own = frozenset(requirement.extras)
        if name == "dagmaster":
            pending += [(each, own) for each in requirements]
            continue
        if (name, own) in seen:
            continue
        seen.add((name, own))
        names.add(name)
        pending += [(Requirement(text), own) for text in metadata.requires(name) or ()]
    return names


def _entries(name: str) -> set[Path]:
    """The files and folders of a distribution in site-packages, by their first path segment."""
    site = Path(sysconfig.get_path("purelib"))
    parts = {file.parts[0] for file in metadata.files(name) or ()}
    return {site / part for part in parts if part not in {"..", "__pycache__", ""} and (site / part).exists()}
