"""`dagmaster doctor`: find out what is wrong, and say how to fix it. `checkup` looks, `diagnosis` judges."""

from dataclasses import asdict

import click

from dagmaster.cli.command import Command, State, pass_state
from dagmaster.cli.diagnosis import Finding, Level
from dagmaster.cli.printable import counted

_MARKS = {Level.OK: "ok", Level.WARNING: "WARNING", Level.PROBLEM: "PROBLEM"}


@click.command(cls=Command)
@pass_state
def doctor(state: State) -> int:
    """Look for what is wrong with this machine, the database and the platform, and say how to fix it.

    Exit code 1 if there is a problem; warnings do not count. Nothing is changed.
    """
    from dagmaster.cli.checkup import examine

    findings = examine(state.data, state.server)
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    if state.json:
        state.emit(
            {
                "is_healthy": not counts[Level.PROBLEM],
                "problems": counts[Level.PROBLEM],
                "warnings": counts[Level.WARNING],
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        for finding in findings:
            _print(state, finding)
        _print_skipped(state, [finding for finding in findings if finding.level is Level.SKIPPED])
        words = [counted(counts[Level.PROBLEM], "problem"), counted(counts[Level.WARNING], "warning")]
        state.say(f"\n{', '.join(words)}, {counts[Level.OK]} ok")
    return 1 if counts[Level.PROBLEM] else 0


def _print(state: State, finding: Finding) -> None:
    if finding.level is not Level.SKIPPED:
        state.say(f"{_MARKS[finding.level]:<8}{finding.check:<18} {finding.found}")
    if finding.fix:
        state.say(f"{'':<8}{'':<18} fix: {finding.fix}")


def _print_skipped(state: State, findings: list[Finding]) -> None:
    for why in dict.fromkeys(finding.found for finding in findings):
        names = ", ".join(finding.check for finding in findings if finding.found == why)
        state.say(f"not looked at: {names}: {why}")
