"""The process that `limits.inspect` starts: it limits itself, checks one file and prints the result."""

import json
import os
import resource
import signal
import sys
from typing import Any


def main() -> None:
    request = json.load(sys.stdin)
    limits = request.pop("limits")
    output = _reserve_standard_output()
    # The default action of the alarm ends the process, even within a library.
    signal.alarm(limits["seconds"] + 1)
    # Imported before the limits are set, so that only the file can exceed them.
    from dagmaster.raster.validation import check, header_rules

    _limit(limits)
    with os.fdopen(output, "wb") as out:
        out.write(_response(request, check, header_rules))


def _response(request: dict[str, Any], check: Any, header_rules: Any) -> bytes:
    from dagmaster.errors import InvalidRequest, NotFound

    ceilings = header_rules.Ceilings(**request.pop("ceilings"))
    try:
        checked = check.check(ceilings=ceilings, **request)
    except (InvalidRequest, NotFound) as problem:
        error = {"message": problem.message, "code": problem.code, "hint": problem.hint}
        return json.dumps({"invalid": error, "missing": isinstance(problem, NotFound)}).encode()
    return json.dumps({"checked": checked.to_dict()}).encode()


def _reserve_standard_output() -> int:
    """A copy of descriptor 1 for the response. Libraries that write to descriptor 1 write to /dev/null."""
    output = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    return output


def _limit(limits: dict[str, int]) -> None:
    import rasterio.env

    rasterio.env.set_gdal_config("GDAL_CACHEMAX", 128 * 2**20)
    memory = limits["memory_mb"] * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_seconds"], limits["cpu_seconds"] + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
