"""`dagmaster doctor`: check this machine, the database and the platform, and say how to fix what is wrong."""

from threading import Timer

import click

from dagmaster.cli.command import Command, State, pass_state
from dagmaster.quantities import counted

_SLOW_SECONDS = 1.5
_MARKS = {"ok": "ok", "warning": "WARNING", "problem": "PROBLEM"}


@click.command(cls=Command)
@pass_state
def doctor(state: State) -> int:
    """Check this machine, the database and the platform, and say how to fix what is wrong.

    The exit code is 1 if there is a problem; warnings do not count. Nothing is changed.
    """
    from dagmaster.doctor import diagnose
    from dagmaster.doctor.machine import target

    slow = Timer(_SLOW_SECONDS, state.show_progress, ["still checking"])
    slow.start()
    try:
        checked = diagnose(target(state.data, state.server, state.key))
    finally:
        slow.cancel()
    findings = [(check, each) for check, group in checked.items() for each in group]
    problems, warnings, fine = (
        sum(each.level == level for _, each in findings) for level in ("problem", "warning", "ok")
    )
    if state.json:
        counts = {"is_healthy": not problems, "problems": problems, "warnings": warnings}
        shown = [{"check": check, **each._asdict(), "found": each.observation} for check, each in findings]
        state.emit({**counts, "findings": shown})  # `found` is the former name of `observation`
        return 1 if problems else 0
    skipped: dict[str, list[str]] = {}
    for check, each in findings:
        if each.level == "skipped":
            skipped.setdefault(each.observation, []).append(check)
            continue
        state.say(f"{_MARKS[each.level]:<8}{check:<18} {each.observation}")
        if each.fix:
            state.say(f"{'':<26} fix: {each.fix}")
    for reason, names in skipped.items():
        state.say(f"skipped: {', '.join(names)}: {reason}")
    state.say(f"\n{counted(problems, 'problem')}, {counted(warnings, 'warning')}, {fine} ok")
    return 1 if problems else 0
