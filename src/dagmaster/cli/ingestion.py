"""What `dagmaster process` does with files in the bronze zone: submit, watch, approve, print. The package `ingest`
implements the steps.

    submit ─▶ new_asset, new_version, new_revision, already_processing ─▶ watch the job ─▶ approve ─▶ print results
           └▶ already_completed ─────────────────────────────────────────────────────────┘

The result is approved automatically unless --review is given.
"""

import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dagmaster.cli.asset_changes import approve_command
from dagmaster.cli.command import State
from dagmaster.cli.follow import detached, print_outcome, watch
from dagmaster.cli.result_summary import preview_of, print_summary, print_warnings
from dagmaster.cli.submit import deferred_interrupt
from dagmaster.client.feed import Reconnection
from dagmaster.client.models.base import Json
from dagmaster.client.outcome import JobOutcome
from dagmaster.errors import DagmasterError, NotFound
from dagmaster.ingest import submission
from dagmaster.ingest.results import ResultSummary, ResultUrls, served_urls, summarise, summarise_remote
from dagmaster.ingest.review import ReviewState, decide, preview_urls
from dagmaster.ingest.submission import ALREADY_COMPLETED, RESUMED, Ingestion
from dagmaster.ingest.validation import public_check

if TYPE_CHECKING:
    from dagmaster.client.models.assets import AssetSubmissionResult
    from dagmaster.client.models.jobs import JobDetail


def submit(state: State, ingestion: Ingestion) -> bool:
    """Submit, or resume a failed run; returns whether Ctrl-C was pressed meanwhile."""
    with deferred_interrupt() as is_interrupted:
        submission.submit(state.client, ingestion, state.comment)
    return is_interrupted()


def follow(
    state: State,
    ingestion: Ingestion,
    find_maps: Callable[[], str | None],
    *,
    on_tick: Callable[[], None] = lambda: None,
    is_own: bool = False,
) -> int:
    """Submit, wait for the end, approve, print the results; returns the exit code. Ctrl-C stops the platform
    if this command started it (`is_own`); otherwise the job continues on the platform, and nothing is approved."""
    is_interrupted = submit(state, ingestion)
    job_id = ingestion.job_id
    try:
        if is_interrupted:
            signal.raise_signal(signal.SIGINT)  # the interrupt was deferred until the job was known
        _note_outcome(state, ingestion)
        outcome = None
        if job_id is not None:
            outcome = _watched(state, job_id, on_tick, is_over=ingestion.outcome == ALREADY_COMPLETED)
    except KeyboardInterrupt:
        if is_own:
            raise
        return leave_to_platform(state, ingestion)
    return _print_results(state, ingestion, outcome, find_maps(), is_own=is_own)


def leave_to_platform(state: State, ingestion: Ingestion) -> int:
    assert ingestion.job_id is not None
    code = detached(state, ingestion.job_id)
    note_unapproved(state, ingestion)
    return code


def note_unapproved(state: State, ingestion: Ingestion) -> None:
    """Print how to approve the result of a job for which the command does not wait."""
    if not ingestion.is_to_review:
        option = " without --force" if ingestion.is_forced else ""
        state.comment(
            f"the result is not approved automatically: run the same command again later{option}, or review it with:"
        )
    else:
        state.comment("when the job has completed, review the result with:")
    state.comment(f"  dagmaster assets show {ingestion.submitted.dataset_id}")


def _watched(state: State, job_id: str, on_tick: Callable[[], None], *, is_over: bool) -> JobOutcome | None:
    """The outcome of the job. None if it had ended before and retention has deleted it."""
    reconnection = Reconnection(state.note, job_id)
    if not is_over:
        watch(state, job_id, reconnection, on_tick=on_tick, display=_NoDisplay() if state.json else None)
    try:
        return reconnection.call(lambda: JobOutcome.fetch(state.client, job_id))
    except NotFound:
        if not is_over:
            raise
        return None


class _NoDisplay:
    """With --json only the outcome is printed."""

    def show(self, detail: "JobDetail", blockers: Sequence[str] = ()) -> None: ...

    def close(self) -> None: ...


def _note_outcome(state: State, ingestion: Ingestion) -> None:
    result, subject = ingestion.submitted, ingestion.subject
    notes = {
        "already_processing": f"{subject} is already being processed; watching its job",
        ALREADY_COMPLETED: f"{subject} was processed before with the same options; --force processes it again",
        "new_revision": f"this is revision {result.revision} of version {result.version_label} of {result.dataset_id}",
        "new_version": f"this is the new version {result.version_label} of {result.dataset_id}",
        RESUMED: "the job that failed before is resumed",
    }
    if ingestion.outcome in notes:
        state.comment(notes[ingestion.outcome])
    if result.same_content_as is not None:
        state.comment(f"version {result.same_content_as} of {result.dataset_id} has the same content")


def _print_results(
    state: State, ingestion: Ingestion, outcome: JobOutcome | None, maps_url: str | None, *, is_own: bool
) -> int:
    facts = outcome.public() if outcome else _facts_without_job(ingestion)
    facts |= {"asset_id": ingestion.submitted.asset_id, "outcome": ingestion.outcome, **_check_facts(ingestion)}
    if facts["status"] != "completed":
        assert outcome is not None
        return _print_failure(state, ingestion, outcome, facts)
    review = decide(state.client, ingestion)
    urls = _urls(state, ingestion, review, maps_url, is_own=is_own)
    if ingestion.storage is not None:
        results = summarise(ingestion.storage, ingestion.edition, urls)
    else:
        results = summarise_remote(ingestion.edition, facts["result"], urls)
    results = replace(results, preview=_preview(state, ingestion, results, maps_url))
    if state.json:
        is_served = review.is_approved and not is_own
        state.emit({**facts, **results.public(), **_public_review(review), "is_served": is_served}, line=True)
        return 0
    seconds = f" in {facts['seconds']:.1f} s" if facts["seconds"] is not None else ""
    state.say(f"\ndataset {results.dataset_id}, {_version_text(ingestion.submitted)}, completed{seconds}")
    print_warnings(state, facts["result"])
    print_summary(state, results, is_stopping=is_own)
    _note_review(state, review)
    return 0


def _urls(state: State, ingestion: Ingestion, review: ReviewState, maps_url: str | None, *, is_own: bool) -> ResultUrls:
    """Where the result is served, or where it can be previewed."""
    if maps_url and review.is_approved:
        return served_urls(ingestion.storage, ingestion.edition, maps_url)
    if maps_url and not is_own:
        try:
            return preview_urls(state.client, ingestion, maps_url)
        except DagmasterError as error:
            state.note(f"no link to a preview: {error.message}")
    return ResultUrls()


def _check_facts(ingestion: Ingestion) -> Json:
    result = ingestion.submitted
    return {
        "version_ordinal": result.version_ordinal,
        "version_label": result.version_label,
        "revision": result.revision,
        "check": public_check(ingestion.checks) if ingestion.checks else None,
    }


def _facts_without_job(ingestion: Ingestion) -> Json:
    facts: Json = {"job_id": ingestion.job_id, "workflow_id": ingestion.workflow, "status": "completed"}
    return facts | {"seconds": None, "result": None, "error": None, "failed_nodes": []}


def _version_text(result: "AssetSubmissionResult") -> str:
    is_plain = result.version_label == str(result.version_ordinal)
    label = "" if is_plain else f" ({result.version_label})"
    return f"version {result.version_ordinal}{label}, revision {result.revision}"


def _print_failure(state: State, ingestion: Ingestion, outcome: JobOutcome, facts: Json) -> int:
    if state.json:
        state.emit(facts, line=True)
        return 1
    print_outcome(state, outcome)
    if outcome.status == "partial_success":
        state.note(f"review the partial result with: dagmaster assets show {ingestion.submitted.dataset_id}")
    else:
        state.note("continue the job with --resume; the same command without --resume makes a new revision")
    return 1


def _preview(state: State, ingestion: Ingestion, results: ResultSummary, maps_url: str | None) -> Path | None:
    file = ingestion.preview_file
    if ingestion.outcome == ALREADY_COMPLETED and ingestion.preview is None and file.exists():
        return file
    return preview_of(state, results, file, maps_url)


def _public_review(review: ReviewState) -> Json:
    command = None if review.is_approved else approve_command(review.asset, review.ordinal)
    return {"is_approved": review.is_approved, "clearance": review.asset.clearance_state, "approve": command}


def _note_review(state: State, review: ReviewState) -> None:
    if review.is_approved:
        return
    state.note(f"{review.reason or 'the result waits for review, and is not on the map yet'}; decide with:")
    state.note(f"  {approve_command(review.asset, review.ordinal)}")
    state.note(f"  dagmaster assets reject {review.asset.dataset_id} --version {review.ordinal} --reason …")
