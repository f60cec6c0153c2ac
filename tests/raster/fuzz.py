"""`python -m tests.raster.fuzz FOLDER [CRS]`: checks every file of a folder and prints a line of JSON for each.

It runs in a separate process: a damaged file may crash the libraries, and then the output ends before its line.
"""

import json
import resource
import sys
import time
from pathlib import Path

from dagmaster.errors import UnfitData
from dagmaster.raster.source.facts import read_facts
from dagmaster.raster.validation.check import check


def main(folder: Path, crs: str | None) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
    for path in sorted(folder.iterdir()):
        start = time.perf_counter()
        checked = check(path, source_crs=crs)
        errors = [finding.code for finding in checked.errors]
        responses = [checked.verdict.value, width_or_error_code(path)]
        seconds = time.perf_counter() - start
        print(json.dumps({"name": path.name, "answers": responses, "errors": errors, "seconds": seconds}), flush=True)


def width_or_error_code(path: Path) -> str:
    try:
        return f"{read_facts(path).width} pixels wide"
    except UnfitData as refused:
        return refused.code


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
