"""An old submission as a submission of this platform. Pure.

The body of the old API contains the parameters of the job, `resume` and `force_reprocess`. A job that writes a raster
dataset becomes a submission of the platform `legacy`: the rules of assets apply, and its result is reviewed. Other jobs
are submitted unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, TypeVar
from uuid import UUID

from pydantic import ValidationError

from dagmaster.api.legacy.names import job_type_of
from dagmaster.api.legacy.shapes import TASK_LIST_FIELDS, spelled_twice
from dagmaster.client.models.assets import AssetSubmissionRequest
from dagmaster.dataset_ids import MAX_ID_LENGTH, dataset_id_from, is_reserved, job_dataset_id
from dagmaster.errors import InvalidRequest
from dagmaster.jobs.model import Submission
from dagmaster.workflows.model import Workflow

PLATFORM: Final = "legacy"
_DECIDED_BY_ASSET: Final = frozenset({"dataset_id", "version_ordinal", "revision"})
_DIGITS_OF_HASH: Final = 8
_SUFFIX: Final = ".tif"
# Clients may send the response of `GET /api/dbadmin/tasks` as the body of `stac_register_manual`.
_OF_TASK_LIST: Final = frozenset(spelled_twice(dict.fromkeys(TASK_LIST_FIELDS))) - {"job_id", "jobId"}

M = TypeVar("M", AssetSubmissionRequest, Submission)


@dataclass(frozen=True, slots=True)
class OldSubmission:
    """The request of an old client. `parameters` are those that it sent, without the two options."""

    job_type: str
    workflow_id: str
    parameters: Mapping[str, Any]
    resume: bool = False
    force: bool = False

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs of the workflow, with those that the job type sets."""
        return {**job_type_of(self.job_type).inputs, **self.parameters}


def read_submission(job_type: str, body: Mapping[str, Any], *, resume: bool, force: bool) -> OldSubmission:
    """`resume` and `force` are those of the query; the body may contain them too."""
    parameters = dict(body)
    resume |= _flag(parameters, "resume")
    force |= _flag(parameters, "force_reprocess") | _flag(parameters, "force")
    if resume and force:
        raise InvalidRequest(
            "`resume` and `force_reprocess` cannot be combined: one continues the existing job, the other starts a new "
            "one",
            code="request.contradiction",
        )
    return OldSubmission(job_type, job_type_of(job_type).workflow_id, parameters, resume, force)


def _flag(parameters: dict[str, Any], name: str) -> bool:
    value = parameters.pop(name, None)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise InvalidRequest(f"`{name}` must be true or false", code="request.invalid", fields=[name])


def makes_asset(workflow: Workflow) -> bool:
    """Whether a workflow writes the dataset of an asset, from objects of the bronze zone."""
    inputs = workflow.inputs
    return inputs.keys() >= _DECIDED_BY_ASSET and bool({"blob_name", "blob_names"} & inputs.keys())


def asset_request(
    submission: OldSubmission, workflow: Workflow, *, default_container: str | None = None
) -> AssetSubmissionRequest:
    """The submission of the platform `legacy`.

    Each file is a dataset of its own, as each was a job of its own: an old `collection_id` is the first part of the
    dataset's name, unless a `dataset_id` names it.
    """
    parameters = submission.inputs
    is_many = "blob_names" in workflow.inputs
    container, blobs = _source(parameters, is_many=is_many)
    dataset_id, collection_id = _text(parameters, "dataset_id"), _text(parameters, "collection_id")
    other_container = None if container == default_container else container
    fields = {name: parameters.pop(name, None) for name in ("version_label", "callback_url", "priority")}
    return _checked(
        AssetSubmissionRequest,
        platform_id=PLATFORM,
        platform_refs={"dataset": dataset_id or dataset_name(collection_id, other_container, blobs)},
        source={"container": container, "blobs" if is_many else "blob": blobs},
        workflow_id=submission.workflow_id,
        parameters=parameters,
        force=submission.force,
        **{name: value for name, value in fields.items() if value is not None},
    )


def job_request(submission: OldSubmission, workflow: Workflow, *, submitted_by: str) -> Submission:
    """The submission of a job that makes no asset."""
    parameters = submission.inputs
    if workflow.workflow_id == "stac_register":
        parameters = _registration(parameters)
    if {"container_name", "blob_name"} <= workflow.inputs.keys():
        container, blobs = _source(parameters, is_many=False)
        parameters |= {"blob_name": blobs} | ({} if container is None else {"container_name": container})
    fields = {
        name: parameters.pop(name)
        for name in ("callback_url", "priority")
        if name in parameters and name not in workflow.inputs
    }
    return _checked(
        Submission,
        workflow_id=submission.workflow_id,
        inputs=parameters,
        submitted_by=submitted_by,
        **{name: value for name, value in fields.items() if value is not None},
    )


def dataset_name(collection_id: str | None, container: str | None, blobs: str | list[str]) -> str:
    """The name of the dataset of a source, the same for the same source. Unless it is the name of one file without
    `.tif`, it ends with a hash, so that two sources do not share a name."""
    first = blobs if isinstance(blobs, str) else next(iter(blobs), "")
    plain = "-".join(part for part in (collection_id, container, first.removesuffix(_SUFFIX)) if part)
    try:
        name = dataset_id_from(plain)
    except InvalidRequest:
        name = "dataset"
    if f"{name}{_SUFFIX}" == blobs and collection_id is container is None and not is_reserved(name):
        return name
    digest = sha256(repr((collection_id, container, blobs)).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[: MAX_ID_LENGTH - _DIGITS_OF_HASH - 1].rstrip('-_.')}-{digest[:_DIGITS_OF_HASH]}"


def _source(parameters: dict[str, Any], *, is_many: bool) -> tuple[str | None, str | list[str]]:
    """The container and the blobs that the parameters name. They are removed from the parameters."""
    container = _text(parameters, "container_name")
    path = _text(parameters, "blob_path")
    if is_many:
        blobs = parameters.pop("blob_names", None)
        if not isinstance(blobs, list) or not all(isinstance(blob, str) for blob in blobs):
            raise _invalid("`blob_names` is required: the names of the files", "blob_names")
        return container, blobs
    blob = _text(parameters, "blob_name")
    if path is not None and blob is None and container is None:
        container, _, blob = path.partition("/")
    elif path is not None:
        raise _invalid("`blob_path` cannot be combined with `container_name` or `blob_name`", "blob_path")
    if not blob:
        raise _invalid("`blob_name` is required", "blob_name")
    return container or None, blob


def _registration(parameters: dict[str, Any]) -> dict[str, Any]:
    """`stac_register_manual` also accepts a list of tasks, which names a job."""
    parameters = {name: value for name, value in parameters.items() if name not in _OF_TASK_LIST}
    job_ids = [value for name in ("job_id", "jobId") if (value := parameters.pop(name, None)) is not None]
    if not job_ids or parameters.get("dataset_id") is not None:
        return parameters
    try:
        return {**parameters, "dataset_id": job_dataset_id(UUID(str(job_ids[0])))}
    except ValueError:
        raise _invalid("`job_id` is not the id of a job of this platform", "job_id") from None


def _text(parameters: dict[str, Any], name: str) -> str | None:
    value = parameters.pop(name, None)
    if value is None or isinstance(value, str):
        return value or None
    raise _invalid(f"`{name}` must be a string", name)


def _invalid(message: str, field: str) -> InvalidRequest:
    return InvalidRequest(message, code="inputs.invalid", fields=[field])


def _checked(kind: type[M], **fields: Any) -> M:
    try:
        return kind(**fields)
    except ValidationError as error:
        mistakes = error.errors(include_input=False, include_url=False)
        names = [".".join(map(str, mistake["loc"])) for mistake in mistakes]
        problems = "; ".join(f"{name}: {mistake['msg']}" for name, mistake in zip(names, mistakes, strict=True))
        raise InvalidRequest(problems, code="inputs.invalid", fields=names) from None
