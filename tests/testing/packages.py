"""Packages that extend dagmaster: the example, installed in the usual way, and small broken ones.

The broken ones consist of files that the tests write: modules, and the metadata with which entry points are found.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "example_package"


def install_example(site: Path, scratch: Path) -> Path:
    """Build the example package and install it into a folder; offline, with the build tools of this environment."""
    source = shutil.copytree(EXAMPLE, scratch / "example_package", dirs_exist_ok=True)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", site, source], check=True, timeout=100
    )
    return site


def write_package(site: Path, name: str, files: Mapping[str, str], **entry_points: str) -> None:
    """Write a package into a site folder as if it were installed, with entry points `handlers` and `workflows`."""
    for file, text in {"__init__.py": "", **files}.items():
        path = site / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[dagmaster.{group}]\n{name} = {value}\n" for group, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
