"""Files in the bronze zone become a version of an asset of the platform `local`: submit, watch, approve, print.

    submit ─▶ new_asset, new_version, new_revision, already_processing ─▶ watch the job ─▶ approve ─▶ print results
           └▶ already_completed ─────────────────────────────────────────────────────────┘

Approved is what the user of this machine has processed, unless it shall be reviewed first.
"""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagmaster.cli.asset_changes import approve_command
from dagmaster.cli.command import State
from dagmaster.cli.follow import WatchOutcome, detached, patiently, print_outcome, watch
from dagmaster.cli.result_summary import preview_of, print_summary
from dagmaster.cli.submit import held_back
from dagmaster.client.feed import Reconnection
from dagmaster.client.models.assets import AssetInfo, AssetSubmissionResult, VersionInfo
from dagmaster.client.models.base import Json, read
from dagmaster.errors import Conflict, DagmasterError, NotAllowed, NotFound, Unavailable
from dagmaster.ingest.results import ResultSummary, ServedUrls, is_complete, served_urls, summarise
from dagmaster.ingest.validation import public_check
from dagmaster.storage.location import Edition

if TYPE_CHECKING:
    from dagmaster.client.models.jobs import JobDetail
    from dagmaster.ingest.validation import CheckedFile
    from dagmaster.storage.zones import Storage

LOCAL = "local"
CLEARANCE = "ouo"
COLLECTION = "raster_collection"
RESUMED = "resumed"


@dataclass(slots=True)
class Ingestion:
    """What is processed, and how. `result` is set once it is submitted, `outcome` says what that led to."""

    dataset: str
    workflow: str
    container: str
    blobs: Sequence[str]
    parameters: dict[str, Any]
    storage: "Storage"
    previews: Path
    preview: Path | None = None
    version_label: str | None = None
    checks: "Sequence[CheckedFile]" = ()
    is_forced: bool = False
    is_resumed: bool = False
    is_to_review: bool = False
    result: AssetSubmissionResult | None = field(default=None, init=False)
    outcome: str = field(default="", init=False)

    @property
    def subject(self) -> str:
        return "this collection" if self.workflow == COLLECTION else "this file"

    @property
    def submitted(self) -> AssetSubmissionResult:
        assert self.result is not None
        return self.result

    @property
    def job_id(self) -> str | None:
        return str(self.result.job_id) if self.result and self.result.job_id else None

    @property
    def edition(self) -> Edition:
        return Edition(self.submitted.dataset_id, self.submitted.version_ordinal or 0, self.submitted.revision or 1)

    @property
    def preview_file(self) -> Path:
        edition = self.edition
        return self.preview or self.previews / f"{edition.dataset}-v{edition.ordinal}-r{edition.revision}.png"

    def source(self) -> Json:
        blobs = {"blobs": list(self.blobs)} if self.workflow == COLLECTION else {"blob": self.blobs[0]}
        return {"container": self.container, **blobs}

    def submission(self) -> Json:
        submission = {
            "platform_id": LOCAL,
            "platform_refs": {"dataset": self.dataset},
            "source": self.source(),
            "workflow_id": self.workflow,
            "parameters": self.parameters,
            "force": self.is_forced,
        }
        return submission | ({"version_label": self.version_label} if self.version_label else {})


def submit(state: State, ingestion: Ingestion) -> bool:
    """Submit, or resume a failed run; returns whether Ctrl-C was pressed meanwhile."""
    with held_back() as is_interrupted:
        if not (ingestion.is_resumed and _resume(state, ingestion)):
            _submit(state, ingestion)
            if ingestion.outcome == "already_completed" and not _has_results(state, ingestion):
                if not state.json:
                    state.note(
                        f"{ingestion.subject} was processed before, but its results were deleted; it is processed again"
                    )
                ingestion.is_forced = True
                _submit(state, ingestion)
    return is_interrupted()


def _submit(state: State, ingestion: Ingestion) -> None:
    try:
        answer = state.client.submit_asset(ingestion.submission())
    except Unavailable as error:
        if error.code not in {"server.lost", "server.slow"}:
            raise
        hint = "run the same command again: what was submitted already is not processed twice"
        raise Unavailable(error.message, code=error.code, hint=hint) from None
    except Conflict as error:
        if error.code == "version.unresolved":
            error.hint = (
                f"decide on it first (`dagmaster assets show {ingestion.dataset}` says how), or leave out "
                "--version-label to process that version again"
            )
        raise
    ingestion.result = read(AssetSubmissionResult, answer)
    ingestion.outcome = str(ingestion.result.outcome)


def _has_results(state: State, ingestion: Ingestion) -> bool:
    return is_complete(ingestion.storage, ingestion.edition, _result_of(state, ingestion.job_id))


def _result_of(state: State, job_id: str | None) -> Json:
    """The result of a job; nothing if retention has deleted the job."""
    try:
        result = state.client.job(job_id)["job"].get("result_data") if job_id else None
    except NotFound:
        result = None
    return result if isinstance(result, dict) else {}


def _resume(state: State, ingestion: Ingestion) -> bool:
    """Resume the failed job of the version, if it did the same; False if there is none."""
    try:
        asset = read(AssetInfo, state.client.asset(ingestion.dataset))
    except NotFound:
        return False
    present = [version for version in asset.versions if version.deleted_at is None]
    labelled = [v for v in present if ingestion.version_label in (None, v.version_label)]
    version = labelled[-1] if labelled else None
    if version is None or version.processing_state != "failed" or version.current_job_id is None:
        return False
    if not _is_same_work(state, ingestion, str(version.current_job_id)):
        if not state.json:
            state.note("the run that failed had another file or other options; this is a new revision")
        return False
    state.client.resume(str(version.current_job_id), {})
    ingestion.result = AssetSubmissionResult(
        request_id=None,
        outcome=None,
        asset_id=asset.asset_id,
        dataset_id=asset.dataset_id,
        version_ordinal=version.version_ordinal,
        version_label=version.version_label,
        revision=version.revision,
        workflow_id=ingestion.workflow,
        job_id=version.current_job_id,
    )
    ingestion.outcome = RESUMED
    return True


def _is_same_work(state: State, ingestion: Ingestion, job_id: str) -> bool:
    """Whether a job has the source and the options of this command. What the platform decides is not compared."""
    try:
        job = state.client.job(job_id)["job"]
    except NotFound:
        return False
    if job.get("workflow_id") != ingestion.workflow:
        return False
    blobs = {"blob_names": list(ingestion.blobs), "blob_name": ingestion.blobs[0]}
    given = {**blobs, "container_name": ingestion.container, **ingestion.parameters}
    declared = state.client.workflow(ingestion.workflow)["inputs_schema"]["properties"]
    inputs = job.get("input_params") or {}
    return all(
        inputs.get(name) == given.get(name, schema.get("default"))
        for name, schema in declared.items()
        if not schema.get("readOnly")
    )


def follow(
    state: State,
    ingestion: Ingestion,
    find_maps: Callable[[], str | None],
    *,
    on_tick: Callable[[], None] = lambda: None,
    is_own: bool = False,
) -> int:
    """Submit, wait for the end, approve, print the results; returns the exit code. Ctrl-C stops a platform of our
    own; otherwise it leaves the job to the platform, and approves nothing."""
    is_interrupted = submit(state, ingestion)
    job_id = ingestion.job_id
    try:
        if is_interrupted:
            signal.raise_signal(signal.SIGINT)  # it was held back until the job was known
        _note_outcome(state, ingestion)
        outcome = None
        if job_id is not None:
            outcome = _watched(state, job_id, on_tick, is_over=ingestion.outcome == "already_completed")
    except KeyboardInterrupt:
        if is_own:
            raise
        return left_to_platform(state, ingestion)
    return _print_results(state, ingestion, outcome, find_maps(), is_own=is_own)


def left_to_platform(state: State, ingestion: Ingestion) -> int:
    assert ingestion.job_id is not None
    code = detached(state, ingestion.job_id)
    if not state.json:
        note_unapproved(state, ingestion)
    return code


def note_unapproved(state: State, ingestion: Ingestion) -> None:
    """How a job that nobody waits for is approved."""
    if not ingestion.is_to_review:
        state.note("it is not approved when it completes: run the same command again, or review it with:")
    else:
        state.note("when it has completed, review it with:")
    state.note(f"  dagmaster assets show {ingestion.submitted.dataset_id}")


def _watched(state: State, job_id: str, on_tick: Callable[[], None], *, is_over: bool) -> WatchOutcome | None:
    """How the job ended. None if it was over and retention has deleted it."""
    reconnection = Reconnection(state.note, job_id)
    if is_over:
        try:
            return patiently(reconnection, lambda: WatchOutcome.ask(state.client, job_id))
        except NotFound:
            return None
    watch(state, job_id, reconnection, on_tick=on_tick, display=_Silent() if state.json else None)
    return patiently(reconnection, lambda: WatchOutcome.ask(state.client, job_id))


class _Silent:
    """With --json only the end is printed."""

    def show(self, detail: "JobDetail", blockers: Sequence[str] = ()) -> None: ...

    def close(self) -> None: ...


def _note_outcome(state: State, ingestion: Ingestion) -> None:
    if state.json:
        return
    result = ingestion.submitted
    match ingestion.outcome:
        case "already_processing":
            state.note(f"{ingestion.subject} is already being processed; watching its job")
        case "already_completed":
            state.note(f"{ingestion.subject} was processed before with the same options; --force processes it again")
        case "new_revision":
            state.note(f"this is revision {result.revision} of version {result.version_label} of {result.dataset_id}")
        case "new_version":
            state.note(f"this is the new version {result.version_label} of {result.dataset_id}")
        case _ if ingestion.outcome == RESUMED:
            state.note("the job that failed before is resumed")
    if result.same_content_as is not None:
        state.note(f"version {result.same_content_as} of {result.dataset_id} has the same content")


def _print_results(
    state: State, ingestion: Ingestion, outcome: WatchOutcome | None, maps_url: str | None, *, is_own: bool
) -> int:
    facts = outcome.public() if outcome else _facts_without_job(ingestion)
    facts |= {"asset_id": ingestion.submitted.asset_id, "outcome": ingestion.outcome, **_check_facts(ingestion)}
    if facts["status"] != "completed":
        assert outcome is not None
        return _print_failure(state, ingestion, outcome, facts)
    review = decide(state, ingestion)
    urls = ServedUrls()
    if maps_url and review.is_approved:
        urls = served_urls(ingestion.storage, ingestion.edition, maps_url)
    elif maps_url and not is_own:
        urls = preview_urls(state, ingestion, maps_url)
    results = summarise(ingestion.storage, ingestion.edition, urls)
    results = replace(results, preview=_preview(state, ingestion, results, maps_url))
    if state.json:
        is_served = review.is_approved and not is_own
        state.emit({**facts, **results.public(), **review.public(), "is_served": is_served}, line=True)
        return 0
    seconds = f" in {facts['seconds']:.1f} s" if facts["seconds"] is not None else ""
    state.say(f"\ndataset {results.dataset_id}, {_version_text(ingestion.submitted)}, completed{seconds}")
    print_summary(state, results, is_stopping=is_own)
    review.note(state)
    return 0


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


def _version_text(result: AssetSubmissionResult) -> str:
    is_plain = result.version_label == str(result.version_ordinal)
    label = "" if is_plain else f" ({result.version_label})"
    return f"version {result.version_ordinal}{label}, revision {result.revision}"


def _print_failure(state: State, ingestion: Ingestion, outcome: WatchOutcome, facts: Json) -> int:
    if state.json:
        state.emit(facts, line=True)
        return 1
    print_outcome(state, outcome)
    if outcome.status == "partial_success":
        state.note(f"review what it has made with: dagmaster assets show {ingestion.submitted.dataset_id}")
    else:
        state.note("continue it with --resume; the same command without it makes a new revision")
    return 1


def _preview(state: State, ingestion: Ingestion, results: ResultSummary, maps_url: str | None) -> Path | None:
    file = ingestion.preview_file
    if ingestion.outcome == "already_completed" and ingestion.preview is None and file.exists():
        return file
    return preview_of(state, results, file, maps_url)


# --- review ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReviewState:
    """Whether the result is approved; if not, why, and how it can be."""

    is_approved: bool
    asset: AssetInfo
    ordinal: int
    why: str | None = None

    def public(self) -> Json:
        command = None if self.is_approved else approve_command(self.asset, self.ordinal)
        return {"is_approved": self.is_approved, "clearance": self.asset.clearance_state, "approve": command}

    def note(self, state: State) -> None:
        if self.is_approved:
            return
        name = self.asset.dataset_id
        state.note(f"{self.why or 'it waits for review, and is not on the map yet'}; decide with:")
        state.note(f"  {approve_command(self.asset, self.ordinal)}")
        state.note(f"  dagmaster assets reject {name} --version {self.ordinal} --reason …")


def decide(state: State, ingestion: Ingestion) -> ReviewState:
    """Approve what was processed, unless it is to be reviewed first, or was reviewed already."""
    result = ingestion.submitted
    asset = read(AssetInfo, state.client.asset(result.asset_id))
    ordinal = result.version_ordinal or 0
    version = next(each for each in asset.versions if each.version_ordinal == ordinal)
    if _is_approved(version, result.revision):
        return ReviewState(True, asset, ordinal)
    if version.revision != result.revision:
        return ReviewState(False, asset, ordinal, f"revision {version.revision} was submitted meanwhile")
    if version.approval_state == "rejected":
        return ReviewState(False, asset, ordinal, f"it was rejected: {version.rejection_reason}")
    if ingestion.is_to_review:
        return ReviewState(False, asset, ordinal)
    request = {
        "revision": result.revision,
        "clearance_level": CLEARANCE if asset.clearance_state == "uncleared" else None,
    }
    try:
        answer = state.client.change_asset(result.asset_id, "approve", request, version=ordinal)
    except (Conflict, NotAllowed) as error:
        return ReviewState(False, asset, ordinal, f"it is not approved: {error.message}")
    return ReviewState(True, read(AssetInfo, answer), ordinal)


def _is_approved(version: VersionInfo, revision: int | None) -> bool:
    return version.approved_revision == revision and version.unpublished_at is None and version.deleted_at is None


def preview_urls(state: State, ingestion: Ingestion, maps_url: str) -> ServedUrls:
    """Signed URLs of a revision that is not served."""
    from dagmaster.addresses import rebased
    from dagmaster.client.models.assets import SignedLink

    result = ingestion.submitted
    try:
        answer = state.client.link(result.asset_id, result.version_ordinal or 0, {"revision": result.revision})
    except DagmasterError as error:
        state.note(f"no link to a preview: {error.message}")
        return ServedUrls()
    link = read(SignedLink, answer)
    return ServedUrls(tilejson=rebased(link.tilejson_url, maps_url), viewer=rebased(link.map_url, maps_url))
