"""The place that the report of an unexpected error names."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from dagmaster import errors


def test_the_place_of_an_error_is_the_call_of_the_library_that_raised_it():
    try:
        json.loads("{")
    except ValueError as error:
        place = errors.place_of(error)

    assert place.startswith("test_errors.py, line ")
    assert place.endswith(f"in {test_the_place_of_an_error_is_the_call_of_the_library_that_raised_it.__name__}")


def test_the_place_is_in_dagmaster_also_if_it_was_installed_from_a_wheel(tmp_path: Path):
    package = tmp_path / "site-packages" / "dagmaster"
    package.mkdir(parents=True)
    shutil.copy(errors.__file__, package / "errors.py")
    (package / "__init__.py").touch()
    (package / "broken.py").write_text("import json\n\n\ndef load():\n    json.loads('{')\n")
    script = (
        "from dagmaster import broken, errors\n"
        "try:\n"
        "    broken.load()\n"
        "except ValueError as error:\n"
        "    print(errors.__file__, errors.place_of(error), sep='\\n')\n"
    )

    shown = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert shown.stdout.splitlines() == [str(package / "errors.py"), "broken.py, line 5, in load"]


def test_a_package_beside_dagmaster_whose_name_begins_like_it_is_a_library(tmp_path: Path):
    packages = tmp_path / "site-packages"
    (packages / "dagmaster").mkdir(parents=True)
    shutil.copy(errors.__file__, packages / "dagmaster" / "errors.py")
    (packages / "dagmaster" / "__init__.py").touch()
    (packages / "dagmaster" / "caller.py").write_text("import dagmaster_partner\n\ndagmaster_partner.load()\n")
    (packages / "dagmaster_partner.py").write_text("def load():\n    raise ValueError\n")
    script = (
        "from dagmaster import errors\n"
        "try:\n"
        "    from dagmaster import caller\n"
        "except ValueError as error:\n"
        "    print(errors.place_of(error))\n"
    )

    shown = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(packages)}, capture_output=True, text=True, check=True
    )

    assert shown.stdout.strip() == "caller.py, line 3, in <module>"
