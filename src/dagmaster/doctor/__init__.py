"""The checks of `dagmaster doctor`: this machine, the database and the platform.

    facts ─▶ a check judges them ─▶ judgements: a level, an observation, how to fix it

`machine` and `database` have the tables of checks. A check is a name and a function that reads facts about one thing
and judges them. `findings` runs checks side by side. Nothing is changed.
"""

from dagmaster.doctor import machine
from dagmaster.doctor.findings import FindingLevel, Findings, run, skipped
from dagmaster.extras import missing_extra

__all__ = ["FindingLevel", "Findings", "diagnose"]


def diagnose(target: machine.Target) -> Findings:
    """The judgements of all checks, by the name of the check. The client package alone cannot check a database."""
    results = run(machine.CHECKS, target)
    try:
        from dagmaster.doctor import database
    except ModuleNotFoundError as error:
        missing = missing_extra(error, "orchestrator")
        if missing is None:
            raise
        return results | {"database": [skipped(f"{missing.message} ({missing.hint})")]}
    return results | database.diagnose(target)
