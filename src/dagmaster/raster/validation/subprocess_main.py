"""The process that `limits.inspect` starts: it limits itself, checks one file, and answers on its standard output."""

import json
import os
import resource
import signal
import sys
from typing import Any


def main() -> None:
    question = json.load(sys.stdin)
    limits = question.pop("limits")
    answers = _keep_standard_output_for_the_answer()
    # The default action of the alarm ends the process, whatever library it is in.
    signal.alarm(limits["seconds"] + 1)
    # Imported before the limits: the libraries shall not fail, the file may.
    from dagmaster.raster.validation import check, header_rules

    _limit(limits)
    with os.fdopen(answers, "wb") as out:
        out.write(_answer(question, check, header_rules))


def _answer(question: dict[str, Any], check: Any, header_rules: Any) -> bytes:
    from dagmaster.errors import InvalidRequest, NotFound

    ceilings = header_rules.Ceilings(**question.pop("ceilings"))
    try:
        checked = check.check(ceilings=ceilings, **question)
    except (InvalidRequest, NotFound) as problem:
        told = {"message": problem.message, "code": problem.code, "hint": problem.hint}
        return json.dumps({"invalid": told, "missing": isinstance(problem, NotFound)}).encode()
    return json.dumps({"checked": checked.to_dict()}).encode()


def _keep_standard_output_for_the_answer() -> int:
    """Libraries write to descriptor 1 whatever they like."""
    answers = os.dup(1)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    return answers


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
