"""`dagmaster jobs bulk`: cancel, resume or retry many jobs."""

from collections.abc import Sequence
from typing import Any

from dagmaster.cli.command import State
from dagmaster.cli.tables import Column, print_table
from dagmaster.client.models.base import Json, read
from dagmaster.client.models.bulk import BulkReport, BulkResult
from dagmaster.client.moments import parse_moment
from dagmaster.errors import InvalidRequest
from dagmaster.quantities import counted


def request_of(
    state: State,
    action: str,
    reason: str | None,
    *,
    is_dry_run: bool,
    job_ids: Sequence[str],
    workflow: Sequence[str],
    since: str | None,
    until: str | None,
    **options: Any,
) -> Json:
    """The request that the options of the command describe."""
    parts = {name: value for name in ("node", "stage", "failed_children") if (value := options.pop(name))}
    times = {"since": since, "until": until}
    moments = {name: parse_moment(text, f"--{name}").isoformat() for name, text in times.items() if text}
    filters = {name: value for name, value in {**options, "workflow_id": workflow, **moments}.items() if value}
    if bool(filters) == bool(job_ids):
        raise InvalidRequest("select jobs either with --job or with filters", code="usage")
    if (action == "retry") != (len(parts) == 1):
        raise InvalidRequest(
            "retry requires exactly one of --node, --stage and --failed-children; cancel and resume accept none",
            code="usage",
        )
    request: Json = {"action": action, "preview": is_dry_run}
    request |= {"job_ids": [state.client.find_job(name) for name in job_ids]} if job_ids else {"filter": filters}
    request |= {"part": parts} if parts else {}
    return request | ({"reason": reason} if reason else {})


def change_jobs(state: State, request: Json, *, is_confirmed: bool) -> int:
    """Preview, ask, then change exactly the jobs of the preview; returns the exit code."""
    preview = read(BulkReport, state.client.change_jobs({**request, "preview": True}))
    chosen = [str(result.job_id) for result in preview.results if result.outcome == "accepted"]
    if request.get("preview") or not chosen:
        return _show(state, preview)
    question = f"{request['action']} {counted(len(chosen), 'job')}?"
    if not is_confirmed and not state.confirm(question, lambda: _print(state, preview)):
        return 1
    changed = {name: value for name, value in request.items() if name not in {"filter", "preview"}}
    report = read(BulkReport, state.client.change_jobs({**changed, "job_ids": chosen}))
    return _show(state, _with_others(report, preview))


def _with_others(report: BulkReport, preview: BulkReport) -> BulkReport:
    """The report, with the jobs of the preview that were not sent, because they were refused or would not change."""
    others = [result for result in preview.results if result.outcome != "accepted"]
    return report.model_copy(
        update={
            "is_complete": preview.is_complete,
            "unchanged": report.unchanged + preview.unchanged,
            "refused": report.refused + preview.refused,
            "results": [*report.results, *others],
        }
    )


def _show(state: State, report: BulkReport) -> int:
    state.print_result(report.model_dump(mode="json"), lambda: _print(state, report))
    return 4 if report.refused else 0


def _print(state: State, report: BulkReport) -> None:
    print_table(state.console, _COLUMNS, report.results)
    accepted_text = "would be accepted" if report.is_preview else "accepted"
    line = f"{report.accepted} {accepted_text}, {report.unchanged} unchanged, {report.refused} refused"
    state.console.print(line if report.is_complete else f"{line}; more jobs match: repeat the command for the others")


def _rerun_text(result: BulkResult) -> str:
    children = sum(result.children.values())
    nodes = counted(len(result.nodes), "node") if result.nodes else ""
    children_text = counted(children, "child", "children") if children else ""
    return ", ".join(part for part in (nodes, children_text) if part)


_COLUMNS: list[Column[BulkResult]] = [
    Column("job", lambda result: str(result.job_id)),
    Column("workflow", lambda result: result.workflow_id or ""),
    Column("state before", lambda result: str(result.status or "")),
    Column("outcome", lambda result: result.outcome),
    Column("runs again", _rerun_text),
    Column("reason", lambda result: result.detail or ""),
]
