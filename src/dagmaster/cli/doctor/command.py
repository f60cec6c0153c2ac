"""The command: run all checks, print the findings."""

from dataclasses import asdict

import click

from dagmaster.cli.command import Command, State, pass_state
from dagmaster.cli.printable import counted

_MARKS = {"ok": "ok", "warning": "WARNING", "problem": "PROBLEM"}


@click.command(cls=Command)
@pass_state
def doctor(state: State) -> int:
    """Check this machine, the database and the platform, and say how to fix what is wrong.

    The exit code is 1 if there is a problem; warnings do not count. Nothing is changed.
    """
    from dagmaster.cli.doctor import database, machine

    target = machine.target(state.data, state.server)
    findings = [*machine.findings(target), *database.findings(target)]
    problems, warnings, fine = (sum(each.level == level for each in findings) for level in ("problem", "warning", "ok"))
    if state.json:
        counts = {"is_healthy": not problems, "problems": problems, "warnings": warnings}
        state.emit({**counts, "findings": [asdict(finding) for finding in findings]})
        return 1 if problems else 0
    skipped: dict[str, list[str]] = {}
    for finding in findings:
        if finding.level == "skipped":
            skipped.setdefault(finding.found, []).append(finding.check)
            continue
        state.say(f"{_MARKS[finding.level]:<8}{finding.check:<18} {finding.found}")
        if finding.fix:
            state.say(f"{'':<26} fix: {finding.fix}")
    for reason, names in skipped.items():
        state.say(f"skipped: {', '.join(names)}: {reason}")
    state.say(f"\n{counted(problems, 'problem')}, {counted(warnings, 'warning')}, {fine} ok")
    return 1 if problems else 0
