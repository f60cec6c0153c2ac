"""A copy of the tree, in which one bug at a time is inserted and removed again."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mutants.catalogue import Edit

ROOT: Final = Path(__file__).resolve().parents[1]
COPIED: Final = ("src", "tests", "pyproject.toml")


class Mismatch(Exception):
    """The text to replace does not exist exactly once."""


def occurrences(edit: Edit, root: Path = ROOT) -> int:
    return (root / edit.path).read_text().count(edit.old)


class Scratch:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def copy_to(cls, folder: Path) -> "Scratch":
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, folder / name)
        scratch = cls(folder)
        scratch.check_imports()
        return scratch

    @property
    def environment(self) -> dict[str, str]:
        """The copy's package comes before the one that is installed, in every process that a test starts."""
        paths = f"{self.folder / 'src'}{os.pathsep}{self.folder}"
        return {**os.environ, "PYTHONPATH": paths, "COLUMNS": "250"}  # wide enough for pytest to print the reason

    def check_imports(self) -> None:
        code = "import dagmaster, tests; print(dagmaster.__file__, tests.__file__)"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outside = [place for place in done.stdout.split() if not Path(place).is_relative_to(self.folder)]
        if outside:
            raise RuntimeError(f"the tests would not use the copy, but {', '.join(outside)}")

    @contextmanager
    def mutated(self, edits: Sequence[Edit]) -> Iterator[None]:
        before = {edit.path: (self.folder / edit.path).read_text() for edit in edits}
        try:
            for edit in edits:
                self._apply(edit)
            yield
        finally:
            for path, text in before.items():
                self._write(path, text)

    def _apply(self, edit: Edit) -> None:
        count = occurrences(edit, self.folder)
        if count != 1:
            raise Mismatch(f"{edit.path} has this {count} times instead of once: {edit.old!r}")
        self._write(edit.path, (self.folder / edit.path).read_text().replace(edit.old, edit.new))

    def _write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.write_text(text)
        if file.suffix == ".py":  # bytecode is reused if size and time of the source are the same
            Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)
