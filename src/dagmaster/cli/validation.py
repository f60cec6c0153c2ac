"""Validate files before they are copied, and print the findings."""

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dagmaster.cli.command import State
from dagmaster.cli.progress import progress_bar
from dagmaster.client.escaping import escaped
from dagmaster.errors import InvalidRequest
from dagmaster.ingest.sources import LocalFile
from dagmaster.ingest.validation import CheckedFile, FileRules, findings_on_all, public_check, validate_all, with_date
from dagmaster.quantities import counted, size_text

if TYPE_CHECKING:
    from dagmaster.raster.validation.findings import Checked, Finding

# Inputs of the job that findings mention; they are printed as options of `dagmaster process`.
_INPUT = re.compile(r"`?\b(source_crs|target_crs|raster_type|output_tier|tile_size)\b(=?)`?")
_STYLES = {"error": "bold red", "warn": "yellow", "info": "dim"}
_MAX_NAMED = 3


def validate(state: State, files: Sequence[LocalFile], rules: FileRules, *, is_dated: bool) -> list[CheckedFile] | None:
    """Validate all files, print the findings, and refuse impossible options and files that do not fit together.

    Returns None if a file is rejected. `is_dated`: the date of the data is given, or known from an earlier revision.
    """
    try:
        checks = validate_all(files, rules, partial(progress_bar, state))
    except InvalidRequest as error:
        hint = in_options(error.hint) if error.hint else None
        raise InvalidRequest(in_options(error.message), code=error.code, hint=hint, **error.facts) from None
    if not is_dated:
        checks = [check if check.checked.errors else with_date(check) for check in checks]
    is_rejected = any(check.checked.errors for check in checks)
    common_findings = [] if is_rejected else findings_on_all(checks, rules.options)
    if not state.json:
        _print_findings(state, checks)
        for finding in common_findings:
            print_finding(state, finding, finding.message)
    elif is_rejected:
        state.emit({"status": "rejected", **_names(files), "check": public_check(checks)}, line=True)
    return None if is_rejected else checks


def _names(files: Sequence[LocalFile]) -> dict[str, Any]:
    return {"file": files[0].label} if len(files) == 1 else {"files": [file.label for file in files]}


def _print_findings(state: State, checks: Sequence[CheckedFile]) -> None:
    """The findings of each file; in a collection the same finding of several files is printed once."""
    if len(checks) == 1:
        _print(state, f"{checks[0].file.path.name}: {_summary(checks[0].checked)}", "bold")
        for finding in checks[0].checked.findings:
            print_finding(state, finding, finding.message)
        return
    rejected = sum(bool(check.checked.errors) for check in checks)
    size_bytes = sum(check.facts.size_bytes for check in checks if check.checked.facts)
    verdict = f"{rejected} rejected" if rejected else "valid"
    _print(state, f"{counted(len(checks), 'file')}, {size_text(size_bytes)}: {verdict}", "bold")
    names: dict[tuple[str, str], list[str]] = {}
    findings = [(check, finding) for check in checks for finding in check.checked.findings]
    for check, finding in findings:
        names.setdefault((finding.code, finding.message), []).append(check.file.path.name)
    for _, finding in sorted(findings, key=lambda pair: list(_STYLES).index(pair[1].severity)):
        if file_names := names.pop((finding.code, finding.message), None):
            others = f" and {len(file_names) - _MAX_NAMED} more" if len(file_names) > _MAX_NAMED else ""
            print_finding(state, finding, f"{', '.join(file_names[:_MAX_NAMED])}{others}: {finding.message}")


def print_finding(state: State, finding: "Finding", message: str) -> None:
    from rich.text import Text

    word = Text(f"  {finding.severity:<6}", style=_STYLES[finding.severity])
    state.console.print(Text.assemble(word, escaped(f"{message} [{finding.code}]")), soft_wrap=True)
    if finding.advice:
        _print(state, f"        {in_options(finding.advice)}", "dim")


def _print(state: State, text: str, style: str) -> None:
    from rich.text import Text

    state.console.print(Text(escaped(text), style=style), soft_wrap=True)


def in_options(advice: str) -> str:
    """Advice with the names of options instead of inputs.

    >>> in_options("pass raster_type=rgba, or `source_crs`")
    'pass --raster-type rgba, or --source-crs'
    """
    return _INPUT.sub(lambda match: f"--{_option_of(match[1])}{' ' if match[2] else ''}", advice)


def _option_of(name: str) -> str:
    return "tier" if name == "output_tier" else name.replace("_", "-")


def _summary(checked: "Checked") -> str:
    facts = checked.facts
    if facts is None:
        return "rejected"
    description = f"{facts.width:,} × {facts.height:,} pixels, {facts.count} × {facts.dtype}, {facts.crs or 'no CRS'}"
    verdict = "rejected" if checked.errors else checked.raster_type.value
    return f"{description}, {size_text(facts.size_bytes)}: {verdict}"
