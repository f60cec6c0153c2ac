"""The request of a submission, checked: its platform, references, workflow, parameters and source."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

import orjson

from dagmaster.access.caller import Caller
from dagmaster.access.decision import submitting_platform
from dagmaster.assets import rules
from dagmaster.assets.identity import References, RegisteredPlatform, check_references, fault_in
from dagmaster.assets.rules import SubmissionDecision, SubmittedSource
from dagmaster.assets.states import AssetState
from dagmaster.assets.uploads import prefix_of
from dagmaster.client.models.assets import AssetSubmissionRequest, PlatformInfo
from dagmaster.database.assets.store import AssetStore
from dagmaster.database.assets.submissions import NewSubmission
from dagmaster.database.ledger.protocol import NewJob
from dagmaster.dataset_ids import (
    MAX_ID_LENGTH,
    RevisionKey,
    dataset_id_from,
    has_dataset_id,
    is_reserved,
    require_dataset_id,
)
from dagmaster.errors import InvalidRequest, NotAllowed
from dagmaster.jobs.model import Submission
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.assets.source import PinnedSource, pin
from dagmaster.operations.callback_urls import main_callback_url
from dagmaster.operations.submit import prepare
from dagmaster.storage import Storage
from dagmaster.workflows.model import Workflow
from dagmaster.workflows.raster import RASTER_COLLECTION, RASTER_INGEST

BUILT_IN_PLATFORMS: Final = ("local", "legacy")  # platforms whose only reference is the name of the dataset
# Inputs that only the platform sets; `collection_id` is another name of the dataset id.
RESERVED: Final = frozenset(
    {"dataset_id", "collection_id", "version_ordinal", "revision", "version_label", "platform_refs"}
)
PINS: Final = frozenset({"source_etag", "source_etags"})
SOURCES: Final = frozenset({"container_name", "blob_name", "blob_names"})
_ASSET_INPUTS: Final = frozenset({"dataset_id", "version_ordinal", "revision"})  # required of a workflow for assets
_MAX_ACTOR_LENGTH = 64  # of `submitted_by` of a job


@dataclass(frozen=True, slots=True)
class CheckedSubmission:
    """A request that fits its platform and its workflow, with its source as it is now."""

    request: AssetSubmissionRequest
    references: References
    label: str | None
    workflow: Workflow
    source: PinnedSource
    inputs: Mapping[str, Any]  # with defaults, without those that the platform sets
    new: NewSubmission

    def decide(self, asset: AssetState | None) -> SubmissionDecision:
        submitted = SubmittedSource(self.label, self.source.identity, self.new.parameters_hash, self.new.actor)
        return rules.submit(asset, submitted, platform_id=self.request.platform_id, force=self.request.force)


async def check(
    store: AssetStore,
    library: WorkflowLibrary,
    storage: Storage,
    request: AssetSubmissionRequest,
    caller: Caller,
) -> CheckedSubmission:
    """Run all checks that are possible before the asset is locked."""
    _require_own_platform(caller, request.platform_id)
    platform = await store.platform(request.platform_id)
    references = check_references(_registered(platform), request.platform_refs)
    label = _label(platform, references, request)
    usual_workflow = RASTER_INGEST if request.source.blobs is None else RASTER_COLLECTION
    workflow = library.get(request.workflow_id or usual_workflow, suggested=_makes_assets)
    _require_assets_workflow(workflow)
    _refuse_reserved(workflow, request.parameters)
    own_platform_id = submitting_platform(caller)
    source = await pin(storage, request.source, prefix=prefix_of(own_platform_id) if own_platform_id else None)
    inputs = _checked_inputs(library, workflow, source, request)
    dataset_ids = _dataset_ids(request.platform_id, references, is_of_partner=own_platform_id is not None)
    parameters_hash = _hash([workflow.workflow_id, inputs])
    title = request.parameters.get("title")
    new = NewSubmission(
        request_id=request.request_id or str(uuid4()),
        request_hash=_hash(_content_of(request)),
        platform_id=request.platform_id,
        asset_id=references.asset_id,
        identity=references.identity,
        platform_refs=references.all,
        dataset_ids=dataset_ids,
        actor=caller.name,
        workflow_id=workflow.workflow_id,
        parameters=request.parameters,
        parameters_hash=parameters_hash,
        source=source.described,
        source_etag=source.etag,
        source_size=source.size_bytes,
        title=title if isinstance(title, str) else None,
        callback_url=main_callback_url(request.callback_url, request.subscriber),
        subscriber=None if request.subscriber is None else request.subscriber.urls,
    )
    return CheckedSubmission(request, references, label, workflow, source, inputs, new)


def _content_of(request: AssetSubmissionRequest) -> dict[str, Any]:
    """What must be the same if a request is repeated. Requests of earlier releases had no subscriber."""
    left_out = {"request_id", "dry_run"} | ({"subscriber"} if request.subscriber is None else set())
    return request.model_dump(mode="json", exclude=left_out)


def job_of(library: WorkflowLibrary, checked: CheckedSubmission, key: RevisionKey, version_label: str) -> NewJob:
    """The job of a revision, with the inputs that only the platform sets."""
    set_inputs = {
        "dataset_id": key.dataset_id,
        "version_ordinal": key.ordinal,
        "revision": key.revision,
        "version_label": version_label,
        "platform_refs": dict(checked.references.all),
        **_pins(checked.source),
    }
    inputs = {name: value for name, value in set_inputs.items() if name in checked.workflow.inputs}
    request = checked.request
    job = prepare(
        library,
        Submission(
            workflow_id=checked.workflow.workflow_id,
            inputs={**request.parameters, **_source_inputs(checked.source), **inputs},
            priority=request.priority,
            correlation_id=checked.new.request_id,
            submitted_by=checked.new.actor[:_MAX_ACTOR_LENGTH],
            callback_url=main_callback_url(request.callback_url, request.subscriber),
        ),
        allow_reserved=True,
    )
    return replace(job, asset_id=checked.new.asset_id, version_ordinal=key.ordinal)


def _require_own_platform(caller: Caller, platform_id: str) -> None:
    own_platform_id = submitting_platform(caller)
    if own_platform_id not in (None, platform_id):
        raise NotAllowed(
            f"this key belongs to the platform '{own_platform_id}' and cannot submit for '{platform_id}'",
            code="platform.not-own",
            hint="submit for the platform of the key",
        )


def _registered(platform: PlatformInfo) -> RegisteredPlatform:
    return RegisteredPlatform(
        platform.platform_id,
        platform.display_name,
        tuple(platform.required_refs),
        tuple(platform.optional_refs),
        platform.version_ref,
        platform.is_active,
    )


def _label(platform: PlatformInfo, references: References, request: AssetSubmissionRequest) -> str | None:
    """The label of the version: from the references, or from the request."""
    if None not in (references.version_label, request.version_label) and (
        references.version_label != request.version_label
    ):
        raise InvalidRequest(
            f"the version is '{request.version_label}' in version_label, and '{references.version_label}' in the "
            f"reference '{platform.version_ref}'",
            code="version.labels-differ",
            hint="give the label in one of the two only",
        )
    if request.version_label is not None and (fault := fault_in(request.version_label)):
        raise InvalidRequest(f"version_label {fault}", code="version.bad-label", hint="use another label")
    return references.version_label or request.version_label


def _dataset_ids(platform_id: str, references: References, *, is_of_partner: bool) -> tuple[str, ...]:
    """The dataset ids that a new asset may get, the preferred one first. The last one ends with digits of the asset id.

    A partner never gets a name without a suffix: whether the name is free would reveal the datasets of other platforms.
    If the references contain no ASCII letter or digit, the asset is named after its platform.
    """
    values = list(references.identity.values())
    is_named = True
    if platform_id in BUILT_IN_PLATFORMS:
        name = values[0]
        require_dataset_id(name)
    else:
        is_named = has_dataset_id("-".join(values))
        name = dataset_id_from("-".join(values) if is_named else platform_id)
    own_name = _with_suffix(name, references.asset_id[:8])
    if is_reserved(name):
        if platform_id in BUILT_IN_PLATFORMS:
            raise InvalidRequest(
                f"'{name}' looks like the id of an asset or a job", code="storage.bad-dataset", hint="use another name"
            )
        return (own_name,)
    if not is_named or (is_of_partner and platform_id not in BUILT_IN_PLATFORMS):
        return own_name, _with_suffix(name, references.asset_id)
    return name, own_name


def _with_suffix(name: str, suffix: str) -> str:
    return f"{name[: MAX_ID_LENGTH - len(suffix) - 1].rstrip('._-')}-{suffix}"


def _makes_assets(workflow: Workflow) -> bool:
    return workflow.inputs.keys() >= _ASSET_INPUTS


def _require_assets_workflow(workflow: Workflow) -> None:
    missing = sorted(_ASSET_INPUTS - workflow.inputs.keys())
    if missing:
        raise InvalidRequest(
            f"workflow '{workflow.workflow_id}' cannot be used for assets: it has no input {', '.join(missing)}",
            code="workflow.not-for-assets",
            hint="choose a workflow that writes datasets, or submit it as a job",
            workflow_id=workflow.workflow_id,
        )


def _refuse_reserved(workflow: Workflow, parameters: Mapping[str, Any]) -> None:
    names = sorted(
        name for name, value in parameters.items() if value is not None and name in RESERVED | PINS | SOURCES
    )
    if names:
        raise InvalidRequest(
            f"these inputs are set by the platform: {', '.join(names)}",
            code="inputs.reserved",
            hint="leave them out of `parameters`; references, label and source are fields of the submission",
            fields=names,
            workflow_id=workflow.workflow_id,
        )


def _checked_inputs(
    library: WorkflowLibrary, workflow: Workflow, source: PinnedSource, request: AssetSubmissionRequest
) -> dict[str, Any]:
    """The parameters with their defaults, once they fit the workflow."""
    takes_many = "blob_names" in workflow.inputs
    if takes_many != source.is_many:
        required = "several blobs" if takes_many else "one blob"
        raise InvalidRequest(
            f"workflow '{workflow.workflow_id}' requires {required}",
            code="source.invalid",
            hint="use `blobs`" if takes_many else "use `blob`",
        )
    inputs = {**request.parameters, **_source_inputs(source)}
    job = prepare(
        library,
        Submission(
            workflow_id=workflow.workflow_id,
            inputs=inputs,
            callback_url=request.callback_url,
            subscriber=request.subscriber,
        ),
    )
    set_by_platform = RESERVED | PINS | SOURCES
    return {name: value for name, value in job.input_params.items() if name not in set_by_platform}


def _source_inputs(source: PinnedSource) -> dict[str, Any]:
    name = {"blob_names": source.blobs} if source.is_many else {"blob_name": source.blobs[0]}
    return {"container_name": source.container, **name}


def _pins(source: PinnedSource) -> dict[str, Any]:
    return {"source_etags": source.etags} if source.is_many else {"source_etag": source.etag}


def _hash(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
