"""The library in a notebook: the most used names are in the package, and are imported on first use."""

import subprocess
import sys

from dagmaster import raster


def test_every_public_name_exists() -> None:
    assert [
        name for name in raster.__all__ if not getattr(raster, name).__module__.startswith("dagmaster.raster.")
    ] == []
    assert sorted(raster.__all__) == sorted(name for names in raster._MODULES.values() for name in names)
    assert not hasattr(raster, "no_such_thing")


def test_importing_the_package_imports_neither_rasterio_nor_numpy() -> None:
    program = "import sys, dagmaster.raster; print('rasterio' in sys.modules, 'numpy' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert completed.stdout.split() == ["False", "False"]
