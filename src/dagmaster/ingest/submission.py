"""Submit files of the bronze zone as a version of an asset of the platform `local`, or resume a job that failed.

    submit ─▶ new_asset, new_version, new_revision, already_processing ─▶ a job to wait for
           ├▶ already_completed ─▶ its results are in storage, or it is submitted again
           └▶ resumed ─▶ the failed job of the version, if it had the same source and options

The caller waits for the job; `review` decides on its result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagmaster.client.connection import UNANSWERED
from dagmaster.client.json_client import JsonClient
from dagmaster.client.models.assets import AssetInfo, AssetSubmissionResult
from dagmaster.client.models.base import Json, read
from dagmaster.errors import Conflict, NotFound, Unavailable
from dagmaster.ingest.results import is_complete
from dagmaster.storage.location import Edition
from dagmaster.workflows.raster import RASTER_COLLECTION

if TYPE_CHECKING:
    from dagmaster.ingest.validation import CheckedFile
    from dagmaster.storage.zones import Storage

LOCAL = "local"
ALREADY_COMPLETED = "already_completed"
RESUMED = "resumed"


@dataclass(slots=True)
class Ingestion:
    """Files of the bronze zone, and the options to process them with. `storage` is that of the platform, if this
    machine can reach it. `submit` sets `result` and `outcome`."""

    dataset: str
    workflow: str
    container: str
    blobs: Sequence[str]
    parameters: dict[str, Any]
    storage: "Storage | None"
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
        return "this collection" if self.workflow == RASTER_COLLECTION else "this file"

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
        return self.preview or self.previews / f"{edition.dataset_id}-v{edition.ordinal}-r{edition.revision}.png"

    def request(self) -> Json:
        blobs = {"blobs": list(self.blobs)} if self.workflow == RASTER_COLLECTION else {"blob": self.blobs[0]}
        request = {
            "platform_id": LOCAL,
            "platform_refs": {"dataset": self.dataset},
            "source": {"container": self.container, **blobs},
            "workflow_id": self.workflow,
            "parameters": self.parameters,
            "force": self.is_forced,
        }
        return request | ({"version_label": self.version_label} if self.version_label else {})


def submit(client: JsonClient, ingestion: Ingestion, note: Callable[[str], None]) -> None:
    """Submit, or resume the job that failed. `note` receives remarks for the user."""
    if ingestion.is_resumed and _resume(client, ingestion, note):
        return
    _submit(client, ingestion)
    if ingestion.outcome == ALREADY_COMPLETED and not _has_results(client, ingestion):
        note(f"{ingestion.subject} was processed before, but its results were deleted; it is processed again")
        ingestion.is_forced = True
        _submit(client, ingestion)


def _submit(client: JsonClient, ingestion: Ingestion) -> None:
    try:
        response = client.submit_asset(ingestion.request())
    except Unavailable as error:
        if error.code in UNANSWERED:
            error.hint = (
                f"it is unknown whether the data was submitted; see `dagmaster assets show {ingestion.dataset}`"
                if ingestion.is_forced
                else "run the same command again: data that was already submitted is not processed twice"
            )
        raise
    except Conflict as error:
        if error.code == "version.unresolved":
            error.hint = (
                f"decide on it first (`dagmaster assets show {ingestion.dataset}` says how), or leave out "
                "--version-label to process that version again"
            )
        raise
    ingestion.result = read(AssetSubmissionResult, response)
    ingestion.outcome = str(ingestion.result.outcome)


def _has_results(client: JsonClient, ingestion: Ingestion) -> bool:
    """Whether the results still exist. On another machine this cannot be checked, and is assumed."""
    if ingestion.storage is None:
        return True
    job = _job(client, ingestion.job_id)
    return is_complete(ingestion.storage, ingestion.edition, job.get("result_data") if job else None)


def _job(client: JsonClient, job_id: str | None) -> Json | None:
    """None if retention has deleted the job."""
    try:
        job: Json | None = client.job(job_id)["job"] if job_id else None
    except NotFound:
        return None
    return job


def _resume(client: JsonClient, ingestion: Ingestion, note: Callable[[str], None]) -> bool:
    """Resume the failed job of the version, if it had the same source and options. False if there is none."""
    try:
        asset = read(AssetInfo, client.asset(ingestion.dataset))
    except NotFound:
        return False
    present = [version for version in asset.versions if version.deleted_at is None]
    labelled = [v for v in present if ingestion.version_label in (None, v.version_label)]
    version = labelled[-1] if labelled else None
    if version is None or version.processing_state != "failed" or version.current_job_id is None:
        return False
    if not _is_same_work(client, ingestion, str(version.current_job_id)):
        note("the run that failed had another file or other options; this is a new revision")
        return False
    client.resume(str(version.current_job_id), {})
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


def _is_same_work(client: JsonClient, ingestion: Ingestion, job_id: str) -> bool:
    """Whether a job has the source and the options of this command. Inputs that the platform sets are not compared."""
    job = _job(client, job_id)
    if job is None or job.get("workflow_id") != ingestion.workflow:
        return False
    blobs = {"blob_names": list(ingestion.blobs), "blob_name": ingestion.blobs[0]}
    parameters = {**blobs, "container_name": ingestion.container, **ingestion.parameters}
    declared = client.workflow(ingestion.workflow)["inputs_schema"]["properties"]
    inputs = job.get("input_params") or {}
    return all(
        inputs.get(name) == parameters.get(name, schema.get("default"))
        for name, schema in declared.items()
        if not schema.get("readOnly")
    )
