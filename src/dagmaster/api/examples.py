"""Examples for the OpenAPI description.

The example of a model is composed from its schema: a field has the value in `_MODELS` under the name of its model, or
else the value in `_FIELDS`. A test validates each example against its schema.
"""

from typing import Any

JOB_ID = "0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01"
_WORKER_ID = "6f1d3c52-55a2-4b7a-9a51-7a0a8a2f1f10"
_RUN_ID = "c1b7a0de-90c5-4a1e-8b64-6a1f5b2f7d03"
ASSET_ID = "461328a8a54dee1e9a75fcbfc496f249"
_OWNER_ID = "0d3a7a0e-9c55-4c5e-8a08-3f0ab6a4f2d1"
_UPLOAD_ID = "7c0de1a4-52a1-4d0e-9a65-1c9d0b1f3a77"
_HASH = "3f7a9c0d5e1b2a4867c0d1e2f3a4b5c6d7e8f90123456789abcdef0123456789"
_T0, _T1, _T2, _T3 = (f"2026-03-01T12:00:{second}Z" for second in ("00.000000", "00.120000", "00.180000", "01.420000"))

STREAM = (
    f'id: 1\nevent: job_created\ndata: {{"sequence": 1, "event_type": "job_created", "created_at": "{_T0}"}}\n\n'
    'event: progress\ndata: {"nodes": [{"node_id": "greet", "attempt": 1, "progress": {"fraction": 0.4}}]}\n\n'
    ": keep-alive\n\n"
)
CHANGES = (
    f'id: 1772366400000000\nevent: hello\ndata: {{"kinds": ["jobs", "assets"], "now": "{_T0}"}}\n\n'
    f'id: 1772366401000000\nevent: jobs\ndata: {{"jobs": [{{"job_id": "{JOB_ID}", "status": "running"}}]}}\n\n'
    ": keep-alive\nid: 1772366416000000\n\n"
)
WORKFLOW = """workflow_id: hello
nodes:
  start: {type: start, next: greet}
  greet: {handler: hello_world, params: {name: you}, next: end}
  end: {type: end}
"""

_FIELDS: dict[str, Any] = {
    # Identity
    "job_id": JOB_ID,
    "task_id": f"{JOB_ID}_greet_1",
    "node_id": "greet",
    "worker_id": _WORKER_ID,
    "owner_id": _OWNER_ID,
    "dead_letter_id": "b8a1f6a2-2a44-4a38-9c1f-0d5f0f0f7a11",
    "callback_id": "3f0f8f5c-1f5e-4d0b-8d0e-5a8a9a2f4c11",
    "action_id": "5d1a0c44-7a4e-4b0b-9f53-0a4a5f1f9e02",
    "run_id": _RUN_ID,
    "workflow_id": "hello_world",
    "workflow_version": "1",
    "definition_hash": _HASH,
    "correlation_id": "order-7",
    "submitted_by": "catalogue",
    "message_id": "m-1",
    "asset_id": ASSET_ID,
    "dataset_id": "floods-r1",
    "platform_id": "ddh",
    "platform_refs": {"dataset_id": "floods", "resource_id": "r1"},
    "request_id": "order-7",
    "version_label": "2024",
    # Times
    "created_at": _T0,
    "queued_at": _T1,
    "dispatched_at": _T1,
    "requested_at": _T1,
    "owner_heartbeat_at": _T1,
    "started_at": _T2,
    "acknowledged_at": _T2,
    "at": _T2,
    "completed_at": _T3,
    "finished_at": _T3,
    "ended_at": _T3,
    "reported_at": _T3,
    "saved_at": _T3,
    "updated_at": _T3,
    "heartbeat_at": _T3,
    "deadline_at": "2026-03-01T14:00:00Z",
    # States
    "status": "completed",
    "state": "completed",
    "processing_state": "completed",
    "approval_state": "approved",
    "clearance_state": "ouo",
    "exposure": "latest-only",
    "job_status": "pending",
    "event_type": "node_dispatched",
    "event_status": "dispatched",
    "reported_status": "succeeded",
    "importance": "critical",
    "reason": None,
    "accepted": True,
    # Contents
    "input_params": {"name": "Ada"},
    "params": {"name": "Ada"},
    "output": {"message": "Hello, Ada!"},
    "result_data": {"message": "Hello, Ada!"},
    "progress": None,
    "result": None,
    "metrics": {"seconds": 1.24},
    "stats": {"cycles": 812},
    "definition": None,
    "inputs": ["name"],
    "inputs_schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": []},
    "detail": "",
    "description": "Greets someone, then repeats the greeting.",
    # Numbers
    "priority": 5,
    "attempt": 1,
    "epoch": 1,
    "max_retries": 3,
    "sequence": 3,
    "last_sequence": 14,
    "number": 1,
    "seconds": 1.42,
    "timeout_seconds": 3600.0,
    "pid": 4711,
    # Names
    "queue": "container-tasks",
    "queues": ["container-tasks"],
    "handler": "hello_world",
    "handlers": ["hello_world"],
    "host": "node-1",
    "software_version": "0.1.0",
    "type": "task",
    "stage": "greet",
    "name": "greet",
    "kind": "tasks",
    "by": "ada",
    "requested_by": "ada",
}

_KEY: dict[str, Any] = {
    "key_id": "k3v9x1q7c2b8",
    "name": "nightly-import",
    "scopes": ["author"],
    "queues": None,
    "created_by": "ada",
}
_STYLE: dict[str, Any] = {
    "title": "Depth of the water",
    "colormap_name": "blues",
    "colormap": None,
    "rescale": [[0, 4]],
    "bidx": [1],
    "resampling": "bilinear",
}
_LAYER_TEXTS: dict[str, Any] = {
    "title": "Floods",
    "description": "The depth of the water of a flood that occurs once in a hundred years.",
    "keywords": ["flood", "depth"],
    "attribution": "© The Survey",
    "style": _STYLE,
}
_LAYER: dict[str, Any] = {
    "layer": "raster",
    "title": "Floods",
    "clearance_state": "public",
    "version_ordinal": 0,
    "revision": 2,
    "starts_at": "2024-01-01T00:00:00Z",
    "ends_at": "2024-01-01T00:00:00Z",
}
# Values of single models, where they differ from those of `_FIELDS`.
_MODELS: dict[str, dict[str, Any]] = {
    "ApproveRequest": {"clearance_level": "ouo", "revision": 2, "reason": "checked against the source"},
    "AssetHistoryEntry": {
        "event_id": 57,
        "action": "approved",
        "actor": "ada",
        "reason": "checked against the source",
        "version_ordinal": 0,
        "revision": 2,
        "detail": {"clearance": "ouo"},
        "request_id": None,
    },
    "AuditEntry": {
        "event_id": 58,
        "action": "key_created",
        "actor": "ada",
        "reason": None,
        "version_ordinal": None,
        "revision": None,
        "detail": {"key_id": "k3v9x1q7c2b8", "name": "hub", "scopes": ["b2b"], "expires_at": None},
        "request_id": None,
        "asset_id": None,
        "dataset_id": None,
        "platform_id": "ddh",
    },
    "AssetInfo": {"etag": "57", "title": "Floods", "latest_approved_version_ordinal": 0, "version_count": 1},
    "AssetSubmissionRequest": {
        "platform_refs": {"dataset_id": "floods", "resource_id": "r1", "version_id": "2024"},
        "version_label": None,
        "data_type": "raster",
        "source": {"container": "bronze", "blob": "floods.tif", "blobs": None},
        "workflow_id": None,
        "parameters": {"title": "Floods"},
        "callback_url": None,
    },
    "AssetSubmissionResult": {
        "outcome": "new_revision",
        "version_ordinal": 0,
        "revision": 2,
        "workflow_id": "raster_ingest",
        "estimate": None,
        "refusal": None,
    },
    "Attempt": {"status": "succeeded", "progress": {"fraction": 1.0, "message": "greeted"}},
    "AttemptError": {"message": "the file is not readable", "blame": "data", "code": "file.unreadable"},
    "AttemptReport": {
        "status": "succeeded",
        "output": {"message": "Hello, Ada!"},
        "error": None,
        "log": None,
        "output_ref": None,
    },
    "CheckpointRequest": {"name": "download", "data": {"bytes": 4096}, "artifacts": []},
    "ExchangeResponse": {"accepted": 1},
    "ExchangeRequest": {"lease_seconds": 60.0},
    "HeldAttempt": {"progress": {"fraction": 0.4}, "log": None},
    "OutputReference": {"sha256": _HASH, "bytes": 300_000},
    "RenewRequest": {"lease_seconds": 60.0},
    "ResultOfChild": {"index": 0, "node_id": "tiles__0", "error_message": None},
    "NodeCheckpoint": {"name": "download", "data": {"bytes": 4096}, "artifacts": None},
    "SentLogLine": {"level": "info", "text": "downloaded 4096 bytes"},
    "StartedWorker": {"caller": "partner", "lease_seconds": 60.0, "protocol": 1},
    "StoredOutput": {"sha256": _HASH, "bytes": 300_000},
    "TaskDemand": {"light_handlers": ["hello_world"], "light": 10, "heavy_handlers": [], "heavy": 0},
    "TaskIds": {"task_ids": [f"{JOB_ID}_greet_1"]},
    "WaitRequest": {"seconds": 25.0},
    "WorkerHeartbeat": {"worker_type": "general", "stats": {"running": 2}},
    "WorkerStart": {"protocol": 1},
    "CallbackDetail": {
        "status": "approved",
        "url": "https://hub.example/done",
        "job_id": None,
        "state": "delivered",
        "attempts": 1,
        "last_status_code": 204,
        "payload": {
            "request_id": "order-7",
            "status": "approved",
            "result_url": "https://gateway.example/api/platform/status/order-7",
        },
    },
    "CallbackInfo": {
        "status": "approved",
        "url": "https://hub.example/done",
        "job_id": None,
        "state": "delivered",
        "attempts": 1,
        "last_status_code": 204,
    },
    "CancelProgress": {"status": "running", "reason": "wrong file"},
    "CallerInfo": {
        "name": "nightly-import",
        "scopes": ["author"],
        "queues": None,
        "permissions": ["anyone", "jobs:read", "jobs:submit"],
        "is_authentication_enabled": True,
    },
    "ChildCounts": {"total": 300, "done": 120, "running": 80, "retrying": 4, "waiting": 95, "failed": 1},
    "DeliveryInfo": {"status_code": 204},
    "FindingInfo": {
        "code": "raster.no-nodata",
        "severity": "warn",
        "message": "no value is marked as nodata",
        "hint": "set the nodata value of the file",
        "stage": "validation",
    },
    "RotateSecretRequest": {"overlap_seconds": 86_400},
    "RotatedSecret": {"secret": "whsec_…", "previous_until": "2026-03-02T12:00:00Z"},
    "ClearRequest": {"clearance_level": "public", "reason": "approved for release"},
    "CreatedKey": {**_KEY, "key": f"dgm_{_KEY['key_id']}_…"},
    "DeadLetterSummary": {
        "queue": "dag-jobs",
        "reason": "WorkflowNotFound",
        "description": "no workflow is named 'helo_world'",
        "body": {"workflow_id": "helo_world"},
        "is_replayable": True,
        "job_id": None,
        "node_id": None,
    },
    "Deliverable": {"count": 1, "usable": True},
    "ExternalCopiesInfo": {
        "state": "exported",
        "error": None,
        "due_at": None,
        "retry_at": None,
        "job_id": JOB_ID,
        "run_id": None,
        "exported_at": _T3,
        "withdrawn_at": None,
        "blob_path": "external/mosaics/floods-r1/v0/r2/mosaic.json",
        "stac_path": "external/stac/floods-r1/v0/r2/collection.json",
        "manifest_path": "external/manifests/floods-r1/v0/r2/manifest.json",
        "url": "https://data.example.org/external/mosaics/floods-r1/v0/r2/mosaic.json",
        "stac_url": "https://data.example.org/external/stac/floods-r1/v0/r2/collection.json",
        "manifest_url": "https://data.example.org/external/manifests/floods-r1/v0/r2/manifest.json",
    },
    "ExposeRequest": {"exposure": "all-versions", "reason": "older versions are cited"},
    "GraphEdge": {"source": "start", "target": "greet", "kind": "all_of"},
    "GraphNode": {"stage_number": 2},
    "Health": {
        "is_ready": True,
        "version": "0.1.0",
        "database_seconds": 0.002,
        "live_orchestrators": 1,
        "live_workers": 2,
    },
    "HealthCheck": {"name": "database", "is_ok": True, "detail": "responds in 2 ms"},
    "Intervention": {"reason": "wrong file"},
    "JanitorAction": {
        "action_type": "lease_lapsed",
        "target_type": "job",
        "target_id": JOB_ID,
        "reason": "the job has tasks with expired leases, and its owner has not processed it for 412 s",
        "detail": {"owner_id": _OWNER_ID, "epoch": 1, "seconds": 412.0},
    },
    "JanitorRun": {"is_dry_run": True},
    "JobDetail": {
        "is_over": True,
        "failed": [],
        "deliverables": {"message": {"count": 1, "location": None, "usable": True}},
    },
    "JobLogLine": {"level": "info", "text": "greeting name=Ada"},
    "JobRequest": {"inputs": {"name": "Ada"}, "submitted_at": None, "message_id": None},
    "LinkRequest": {"revision": 2, "expires_in_hours": 24.0},
    "CommandInfo": {
        "name": "cache.invalidate",
        "summary": "Make all orchestrators reload their workflows.",
        "permission": "platform:operate",
        "inputs": {"type": "object", "properties": {"wait_seconds": {"type": "number", "default": 5.0}}},
        "outputs": {"type": "object", "properties": {"is_complete": {"type": "boolean"}}},
    },
    "LayerInfo": {**_LAYER, "style": _STYLE, "bbox": [10.0, 46.0, 10.5, 46.5], "published_at": _T3},
    "LayerMetadataChange": _LAYER_TEXTS,
    "LayerMetadataInfo": {**_LAYER, **_LAYER_TEXTS, "etag": "3", "is_published": True, "published_at": _T3},
    "LayerMetadataRequest": _LAYER_TEXTS,
    "LayerStyle": _STYLE,
    "KeyInfo": _KEY,
    "KeyUses": {"key_ids": [_KEY["key_id"]]},
    "KeyRequest": {"name": "nightly-import", "scopes": ["author"], "expires_in_days": 365.0},
    "KeyRotation": {"overlap_hours": 24.0, "reason": "every year"},
    "LogLine": {"level": "info", "text": "greeting name=Ada"},
    "SessionInfo": {
        "name": "ada",
        "scopes": ["reviewer"],
        "platform_id": None,
        "permissions": ["anyone", "assets:read", "assets:review", "jobs:read", "workflows:read"],
        "is_authentication_enabled": True,
        "is_signed_in": True,
        "method": "key",
        "expires_at": _T3,
        "csrf_token": "pM5k0dQ2C8mUcZ2Hc0Wf3m1l9pJv4o6Yk7s8tXwzabc",
        "sign_in_methods": [{"method": "key", "url": "/api/v1/session"}],
    },
    "SessionRequest": {"key": f"dgm_{_KEY['key_id']}_…"},
    "SignInMethod": {"method": "key", "url": "/api/v1/session"},
    "MigrationResult": {"changes": ["add column dag_jobs.labels"], "is_current": True},
    "Mistake": {
        "message": "unknown field 'handlr'; did you mean 'handler'?",
        "at": None,
        "line": 4,
        "column": 11,
        "node": "greet",
        "code": "workflow.invalid",
    },
    "PublicNode": {"children": None},
    "OrchestratorSummary": {"heartbeat_age_seconds": 2.4, "is_alive": True, "job_count": 12},
    "OwnedJob": {"status": "running"},
    "PlatformChange": {
        "display_name": "Data hub",
        "is_active": True,
        "b2b_may_approve": False,
        "reason": "renamed",
    },
    "PlatformInfo": {
        "display_name": "Data Distribution Hub",
        "required_refs": ["dataset_id", "resource_id", "version_id"],
        "version_ref": "version_id",
        "is_active": True,
    },
    "PlatformRequest": {
        "platform_id": "hub",
        "display_name": "The hub",
        "required_refs": ["item", "edition"],
        "optional_refs": ["contact"],
        "version_ref": "edition",
    },
    "PrimaryOutcome": {"description": "Say hello", "details": "1 of 1 critical nodes completed"},
    "ProblemDetails": {
        "type": "urn:dagmaster:problem:job.not-found",
        "title": "Not Found",
        "status": 404,
        "detail": f"no job has the id {JOB_ID}",
        "instance": f"/api/v1/jobs/{JOB_ID}",
        "code": "job.not-found",
        "facts": {"job_id": JOB_ID},
        "errors": [],
        "request_id": "5f0c1d3a9e4b4f0e",
    },
    "ProcessLiveness": {"status": "alive", "silent_seconds": 0.2},
    "PublicJob": {"inputs": {"name": "Ada"}, "result": {"message": "Hello, Ada!"}, "message_id": None},
    "QueueSummary": {"depth": 412, "oldest_age_seconds": 33.5, "running_count": 4, "live_workers": 2, "max_running": 4},
    "ReadinessReport": {"is_ready": True},
    "ReasonRequest": {"reason": "superseded"},
    "RefusedFile": {"file": "tiles.yaml"},
    "RejectRequest": {"reason": "the coastline is shifted by 30 m", "revision": 2},
    "Replayed": {"queue": "dag-jobs", "job_id": None},
    "ReportReceipt": {"accepted": True},
    "Resumed": {"status": "resumed", "nodes": ["join", "end"], "children": {"split": 3}, "resume_count": 1},
    "RetryRequest": {"node": "greet", "stage": None, "reason": "a new file"},
    "RevisionInfo": {
        "revision": 2,
        "reviewed_as": "approved",
        "workflow_id": "raster_ingest",
        "source": {"container": "bronze", "blob": "floods.tif"},
        "is_served": True,
    },
    "RunningTask": {"progress": {"fraction": 0.4}},
    "SavedCheckpoint": {
        "name": "downloaded",
        "artifacts": [
            {"uri": "file:///data/scene.tif", "facts": {"size_bytes": 2048, "modified_ns": 1767225600000000000}}
        ],
    },
    "SchemaStatus": {
        "deployed": True,
        "is_current": True,
        "software": "9f86d081884c7d65",
        "stored": "9f86d081884c7d65",
        "server_version": "16.4",
        "extensions": {"plpgsql": "1.0"},
        "catalog": "0.10.0",
    },
    "SecondaryOutcome": {
        "node_id": "postcard",
        "description": "a postcard",
        "importance": "important",
        "status": "failed",
        "error": "no stamps",
        "recovery": f"POST /api/v1/jobs/{JOB_ID}/resume",
    },
    "SignedLink": {
        "token": "dgl1.…",
        "expires_at": "2026-03-02T12:00:00Z",
        "map_url": "https://maps.example/tiles/floods-r1/map?version=0&token=dgl1.…",
        "tilejson_url": "https://maps.example/tiles/floods-r1/WebMercatorQuad/tilejson.json?version=0&token=dgl1.…",
    },
    "BulkFilter": {
        "status": ["failed"],
        "workflow_id": ["hello_world"],
        "submitted_by": None,
        "correlation_id": None,
        "q": None,
        "since": "2h",
        "until": None,
    },
    "BulkReport": {"action": "resume", "is_preview": True, "is_complete": True, "accepted": 1},
    "BulkResult": {"outcome": "accepted", "status": "failed", "code": None, "detail": None, "nodes": ["greet", "end"]},
    "ChangeBatch": {"cursor": "1772366401000000", "queues": True, "instances": False, "resync": None},
    "DefinitionText": {"first_used_at": _T0, "last_used_at": _T3, "jobs": 12, "yaml": "nodes: {}\n", "definition": {}},
    "StoredDefinition": {"first_used_at": _T0, "last_used_at": _T3, "jobs": 12},
    "SubmissionCheck": {"inputs": {"name": "Ada"}, "nodes": 4},
    "SourceObject": {
        "container": "bronze",
        "blob": "ddh/floods.tif",
        "size_bytes": 163_000_000,
        "modified_at": _T0,
        "etag": "4a-18c9e2f0a1b2c3d4-9b72ec0",
    },
    "ListedAsset": {
        "title": "Floods",
        "latest_approved_version_ordinal": 0,
        "version_count": 1,
        "states": ["published"],
        "bbox": [10.0, 46.0, 10.5, 46.5],
    },
    "PendingReview": {"version_ordinal": 1, "revision": 1, "waiting_since": _T3, "bbox": [10.0, 46.0, 12.0, 47.0]},
    "Provenance": {"inputs": {"name": "Ada"}, "version_ordinal": 1, "revision": 1},
    "SourceReference": {"container": "bronze", "blob": "floods.tif", "blobs": None},
    "StageSummary": {"number": 2, "nodes": 1, "completed": 1},
    "Stats": {
        "jobs": {"completed": 115, "failed": 2},
        "are_tasks_complete": True,
        "events": 4096,
        "dead_letters": 1,
        "watchers": 3,
        "database_bytes": 9_437_184,
        "recent_hours": 24,
    },
    "StoppingTask": {"status": "running", "finished_at": None},
    "SubmissionEstimate": {"tile_count": 49, "size_bytes": 163_000_000, "seconds": 41.2, "based_on_runs": 12},
    "SubmissionResult": {"status": "accepted", "result_data": None, "result": None},
    "SubmissionStatus": {"status": "awaiting_review", "reason": None},
    "TableSizes": {"tables": {"dag_jobs": 120, "dag_job_events": 4096}},
    "TaskCount": {"status": "running", "count": 4},
    "TaskError": {"message": "the source responds with 404", "blame": "data", "code": "source.missing"},
    "TaskReport": {"status": "succeeded", "error": None},
    "TimelineEntry": {"status": "succeeded"},
    "VersionInfo": {
        "version_ordinal": 0,
        "revision": 2,
        "approved_revision": 2,
        "is_latest": True,
        "is_served": True,
        "current_job_id": None,
        "reviewer": "ada",
        "reviewed_at": _T3,
    },
    "WaitReason": {"code": "retry", "detail": "retry 2 of 5 in 38.0 s: HTTP 503", "seconds": 38.0, "count": 2},
    "WaitingNode": {"node_id": "fetch", "status": "ready"},
    "WaitingNodes": {"status": "running"},
    "UploadInfo": {
        "upload_id": _UPLOAD_ID,
        "state": "open",
        "name": "floods.tif",
        "source": {"container": "bronze", "blob": "ddh/floods.tif"},
        "size_bytes": 163_000_000,
        "offset_bytes": 8_388_608,
        "sha256": None,
        "created_by": "hub",
        "updated_at": _T2,
        "expires_at": "2026-03-02T12:00:00Z",
        "finished_at": None,
    },
    "UploadRequest": {"name": "floods.tif", "size_bytes": 163_000_000, "sha256": _HASH, "if_exists": "refuse"},
    "UploadedSource": {"container": "bronze", "blob": "ddh/floods.tif"},
    "WorkerSummary": {"worker_type": "general", "heartbeat_age_seconds": 2.4, "is_alive": True, "running_count": 1},
    "WorkflowCheck": {"workflow_id": None, "inputs_schema": None},
    "WorkflowDetail": {
        "version": "1",
        "name": "Hello, world",
        "nodes": 4,
        "definition": {"workflow_id": "hello_world", "nodes": {"start": {"type": "start", "next": ["greet"]}}},
    },
    "WorkflowGraph": {"mermaid": "flowchart TD\n"},
    "WorkflowStatistics": {
        "jobs": 120,
        "active": 3,
        "completed": 115,
        "not_completed": 2,
        "p50_seconds": 1.2,
        "p95_seconds": 3.4,
    },
    "OldSubmissionResponse": {
        "status": "queued",
        "queue": "dag-jobs",
        "stage": None,
        "job_status": None,
        "served_by": "dagmaster",
    },
    "OldJobStatus": {"status": "processing", "stage": 2, "total_stages": 4, "served_by": "dagmaster"},
    "OldStageRetry": {"status": "stage_retry_initiated", "stage": 3, "served_by": "dagmaster"},
    "OldTaskList": {"stage": 2, "count": 0, "tasks": [], "served_by": "dagmaster"},
    "WorkflowSummary": {"version": "1", "name": "Hello, world", "nodes": 4},
}
_EMPTY = {"string": "", "integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {}, "null": None}


def attach(description: dict[str, Any]) -> None:
    """Add an example to each model of an OpenAPI description that has none."""
    schemas = description["components"]["schemas"]
    for name, schema in schemas.items():
        if "properties" in schema:
            schema.setdefault("examples", [_example(name, schemas)])


def _example(name: str, schemas: dict[str, Any]) -> Any:
    schema = schemas[name]
    if "enum" in schema:
        return schema["enum"][0]
    own = _MODELS.get(name, {})
    return {
        field: own[field] if field in own else _value(field, part, schemas)
        for field, part in schema.get("properties", {}).items()
    }


def _value(field: str, schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    choices = schema.get("anyOf", [schema])
    first = choices[0]
    if "$ref" in first:
        name = first["$ref"].rpartition("/")[2]
        is_listed = _FIELDS.get(field) in schemas[name].get("enum", ())
        return _FIELDS[field] if is_listed else _example(name, schemas)
    if "$ref" in first.get("items", {}):
        return [_value("", first["items"], schemas)]
    if field in _FIELDS:
        return _FIELDS[field]
    return None if len(choices) > 1 else _EMPTY.get(first.get("type", "null"))
