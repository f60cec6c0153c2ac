"""`dagmaster doctor`: check this machine, the database and the platform, and say how to fix what is wrong."""

from collections import Counter
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
    levels = Counter[str](each.level for _, each in findings)
    problems, warnings = levels["problem"], levels["warning"]
    if state.json:
        shown = [{"check": check, **each._asdict(), "found": each.observation} for check, each in findings]
        counts = {"is_healthy": not problems, "problems": problems, "warnings": warnings}
        state.emit({**counts, "findings": shown})  # `found` is the former name of `observation`
    else:
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
        state.say(f"\n{counted(problems, 'problem')}, {counted(warnings, 'warning')}, {levels['ok']} ok")
    return 1 if problems else 0
