"""The checks of `dagmaster doctor`: this machine, the database and the platform.

    facts ─▶ a check judges them ─▶ judgements: a level, an observation, how to fix it

`machine` and `database` have the tables of checks and of thresholds. A check is a name and a function that looks at one
thing and judges it. `findings` runs checks side by side. Nothing is changed.
"""

from dagmaster.doctor import database, machine
from dagmaster.doctor.findings import FindingLevel, Findings, run

__all__ = ["FindingLevel", "Findings", "diagnose"]


def diagnose(target: machine.Target) -> Findings:
    """The judgements of all checks, by the name of the check."""
    return run(machine.CHECKS, target) | database.findings(target)
