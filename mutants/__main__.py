"""make mutants: insert each of the known bugs into a copy of the tree, and check that the tests detect it.

python -m mutants                 all bugs
python -m mutants --only 3 --only 18
python -m mutants --list          list them, with the layer of tests that must detect each
python -m mutants --json          print the results as JSON

The run fails if a bug is not detected, if the text that it replaces does not exist exactly once,
or if the tests fail on the unchanged copy.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mutants import trials
from mutants.catalogue import MUTANTS, Mutant
from mutants.scratch import Scratch
from mutants.trials import Trial

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None, known: Sequence[Mutant] = MUTANTS) -> int:
    options = _parser(known).parse_args(arguments)
    chosen = [mutant for mutant in known if not options.only or mutant.number in options.only]
    if options.list:
        print(json.dumps([_described(mutant) for mutant in chosen], indent=2) if options.json else _listed(chosen))
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(chosen, as_json=options.json)
    except KeyboardInterrupt:
        print("mutants: stopped; the copy was removed", file=sys.stderr)
        return INTERRUPTED


def _parser(known: Sequence[Mutant]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    numbers = [mutant.number for mutant in known]
    parser.add_argument(
        "--only", type=int, action="append", choices=numbers, metavar="N", help="only this bug; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="list the bugs and run nothing")
    parser.add_argument("--json", action="store_true", help="print the results as JSON on stdout, progress on stderr")
    return parser


def _interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run(chosen: Sequence[Mutant], *, as_json: bool) -> int:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dagmaster-mutants-") as folder:
        scratch = Scratch.copy_to(Path(folder))
        problem = trials.baseline(scratch, chosen, _print)
        if problem is not None:
            _print(problem)
            return 1
        results = list(_trials(scratch, chosen))
    seconds = time.monotonic() - started
    print(_as_json(results, seconds) if as_json else _table(results))
    detected = sum(trial.is_good for trial in results)
    _print(f"{detected} of {len(results)} bugs caught in {seconds / 60:.1f} minutes")
    return 0 if detected == len(results) else 1


def _trials(scratch: Scratch, chosen: Sequence[Mutant]) -> Iterable[Trial]:
    for position, mutant in enumerate(chosen, 1):
        trial = trials.tried(scratch, mutant)
        _print(f"{position}/{len(chosen)}  {mutant.number}. {mutant.bug}: {trial.verdict} ({trial.seconds:.0f} s)")
        if not trial.is_good:
            commands = " && ".join(f"pytest {' '.join(tests)}" for tests in mutant.selections)
            _print(f"    tests: {commands}\n    {trial.details}")
        yield trial


def _described(mutant: Mutant) -> dict[str, Any]:
    return {
        "number": mutant.number,
        "bug": mutant.bug,
        "files": mutant.files,
        "layer": mutant.layer.name,
        "command": f"pytest {' '.join(mutant.tests)}",
        "adapted": mutant.adapted or None,
    }


def _as_json(results: Iterable[Trial], seconds: float) -> str:
    rows = [
        _described(trial.mutant)
        | {
            "verdict": trial.verdict,
            "caught_by": trial.caught_by,
            "why": trial.details,
            "seconds": round(trial.seconds, 1),
        }
        for trial in results
    ]
    caught = sum(row["verdict"] == trials.Verdict.CAUGHT for row in rows)
    return json.dumps({"caught": caught, "total": len(rows), "seconds": round(seconds, 1), "mutants": rows}, indent=2)


def _listed(chosen: Iterable[Mutant]) -> str:
    heads = ("", "bug", "file", "layer", "adapted")
    return _columns([heads, *((str(m.number), m.bug, m.files, m.layer.name, m.adapted) for m in chosen)])


def _table(results: Iterable[Trial]) -> str:
    heads = ("", "bug", "file", "layer", "caught by", "seconds")
    rows = [
        (
            str(t.mutant.number),
            t.mutant.bug,
            t.mutant.files,
            t.mutant.layer.name,
            t.caught_by or str(t.verdict),
            f"{t.seconds:.0f}",
        )
        for t in results
    ]
    return _columns([heads, *rows])


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


if __name__ == "__main__":
    sys.exit(main())
