"""Examples for the API's description, one for each model; a test holds each against its schema."""

from typing import Any

JOB_ID = "0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01"
_WORKER_ID = "6f1d3c52-55a2-4b7a-9a51-7a0a8a2f1f10"
_OWNER_ID = "0d3a7a0e-9c55-4c5e-8a08-3f0ab6a4f2d1"
_LETTER_ID = "b8a1f6a2-2a44-4a38-9c1f-0d5f0f0f7a11"
_HASH = "3f7a9c0d5e1b2a4867c0d1e2f3a4b5c6d7e8f90123456789abcdef0123456789"
_T0, _T1, _T2, _T3 = (f"2026-03-01T12:00:{second}Z" for second in ("00.000000", "00.120000", "00.180000", "01.420000"))

STREAM = (
    f'id: 1\nevent: job_created\ndata: {{"sequence": 1, "event_type": "job_created", "created_at": "{_T0}"}}\n\n'
    'event: progress\ndata: {"nodes": [{"node_id": "greet", "attempt": 1, "progress": {"fraction": 0.4}}]}\n\n'
    ": still here\n\n"
)
WORKFLOW = """workflow_id: hello
nodes:
  start: {type: start, next: greet}
  greet: {handler: hello_world, params: {name: you}, next: end}
  end: {type: end}
"""
TASK_REPORT: dict[str, Any] = {
    "task_id": f"{JOB_ID}_greet_1",
    "worker_id": _WORKER_ID,
    "status": "succeeded",
    "output": {"message": "Hello, world!"},
}

_SUBMISSION = {
    "workflow_id": "hello_world",
    "input_params": {"name": "Ada"},
    "correlation_id": "order-7",
    "submitted_by": "catalogue",
    "priority": 5,
}
_ANSWER: dict[str, Any] = {
    "status": "accepted",
    "job_id": JOB_ID,
    "job_status": "pending",
    "result_data": None,
    "error_message": None,
    "failed_stage": None,
    "completed_stages": [],
    "resume_count": 0,
    "hint": None,
}
_SUMMARY = {
    "job_id": JOB_ID,
    "workflow_id": "hello_world",
    "workflow_version": "1",
    "status": "completed",
    "priority": 5,
    "correlation_id": "order-7",
    "submitted_by": "catalogue",
    "error_message": None,
    "resume_count": 0,
    "created_at": _T0,
    "started_at": _T1,
    "completed_at": _T3,
}
_JOB = {
    **_SUMMARY,
    "definition_hash": _HASH,
    "input_params": {"name": "Ada"},
    "owner_id": _OWNER_ID,
    "owner_heartbeat_at": _T1,
    "epoch": 1,
    "callback_url": None,
    "idempotency_key": None,
    "message_id": None,
    "asset_id": None,
    "version_ordinal": None,
    "deadline_at": "2026-03-01T14:00:00Z",
    "result_data": {"message": "Hello, Ada!"},
    "last_sequence": 14,
    "version": 6,
    "updated_at": _T3,
}
_PRIMARY = {"description": "Say hello", "status": "completed", "details": "1 of 1 critical nodes completed"}
_SECONDARY = {
    "node_id": "postcard",
    "description": "a postcard",
    "importance": "important",
    "status": "failed",
    "error": "no stamps",
    "recovery": f"POST /api/v1/jobs/{JOB_ID}/resume",
}
_OUTCOMES = {"primary": _PRIMARY, "secondary": [_SECONDARY]}
_DELIVERABLE = {"count": 1, "location": None, "usable": True}
_STOPPING = {
    "task_id": f"{JOB_ID}_greet_1",
    "node_id": "greet",
    "attempt": 1,
    "handler": "hello_world",
    "status": "running",
    "worker_id": _WORKER_ID,
    "requested_at": _T1,
    "acknowledged_at": _T2,
    "finished_at": None,
}
_NODE_LINE = {
    "node_id": "greet",
    "status": "completed",
    "parent_node_id": None,
    "fan_out_index": None,
    "label": None,
    "error_message": None,
    "reason": None,
    "attempt": 1,
    "retry_count": 0,
    "max_retries": 3,
    "loss_count": 0,
    "not_before": None,
    "total": None,
    "expanded": None,
    "remaining": None,
    "failed_count": None,
    "cancelled_count": None,
    "dispatched_at": _T1,
    "started_at": _T2,
    "completed_at": _T3,
    "progress": None,
}
_CHILDREN = {"total": 300, "done": 120, "running": 80, "retrying": 4, "waiting": 95, "failed": 1, "cancelled": 0}
_SHOWN_NODE = {
    **_NODE_LINE,
    "running_count": 0,
    "retrying_count": 0,
    "type": "task",
    "stage": "greet",
    "importance": "critical",
    "handler": "hello_world",
    "state": "completed",
    "seconds": 1.3,
    "children": None,
}
_STAGE = {
    "number": 2,
    "name": "greet",
    "status": "completed",
    "nodes": 1,
    "completed": 1,
    "failed": 0,
    "children": 0,
    "children_failed": 0,
    "started_at": _T1,
    "ended_at": _T3,
    "seconds": 1.3,
}
_NODE_STATE = {
    **_NODE_LINE,
    "job_id": JOB_ID,
    "task_id": f"{JOB_ID}_greet_1",
    "input_params": {"name": "Ada"},
    "output": {"message": "Hello, Ada!"},
    "output_ref": None,
    "error": None,
    "version": 3,
    "run": 1,
}
_LOG_LINE = {"number": 1, "at": _T2, "level": "info", "text": "greeting name=Ada"}
_ATTEMPT = {
    "attempt": 1,
    "task_id": f"{JOB_ID}_greet_1",
    "status": "succeeded",
    "queue": "dag-worker-tasks",
    "handler": "hello_world",
    "priority": 5,
    "params": {"name": "Ada"},
    "params_ref": None,
    "timeout_seconds": 3600.0,
    "retry_count": 0,
    "worker_id": _WORKER_ID,
    "lease_until": None,
    "queued_at": _T1,
    "expires_at": None,
    "started_at": _T2,
    "finished_at": _T3,
    "progress": {"fraction": 1.0, "message": "greeted"},
    "reported_status": "succeeded",
    "output": {"message": "Hello, Ada!"},
    "output_ref": None,
    "error": None,
    "metrics": {"seconds": 1.24},
    "reported_at": _T3,
    "accepted": True,
    "log": [_LOG_LINE],
}
_CHECKPOINT = {
    "name": "downloaded",
    "attempt": 1,
    "saved_at": _T3,
    "artifacts": [{"uri": "file:///data/scene.tif", "facts": {"size_bytes": 2048, "modified_ns": 1767225600000000000}}],
}
_BAR = {
    "node_id": "greet",
    "attempt": 1,
    "task_id": f"{JOB_ID}_greet_1",
    "parent_node_id": None,
    "label": None,
    "status": "succeeded",
    "queue": "dag-worker-tasks",
    "handler": "hello_world",
    "worker_id": _WORKER_ID,
    "queued_at": _T1,
    "started_at": _T2,
    "finished_at": _T3,
}
_EVENT = {
    "sequence": 3,
    "created_at": _T1,
    "event_type": "node_dispatched",
    "node_id": "greet",
    "event_status": "dispatched",
    "attempt": 1,
    "epoch": 1,
    "event_data": None,
    "checkpoint_name": None,
}
_REASON = {
    "code": "retry",
    "detail": "retry 2 of 5 in 38.0 s: HTTP 503",
    "nodes": [],
    "seconds": 38.0,
    "count": 2,
    "queue": None,
    "handler": None,
}
_WAITING_NODE = {"node_id": "fetch", "status": "ready", "label": None, "reasons": [_REASON]}
_WORKFLOW_SUMMARY = {
    "workflow_id": "hello_world",
    "version": "1",
    "name": "Hello, world",
    "description": "Greets someone, then repeats the greeting.",
    "nodes": 4,
    "inputs": ["name"],
    "idempotent": False,
    "definition_hash": _HASH,
}
_MISTAKE = {
    "message": "unknown field 'handlr'; did you mean 'handler'?",
    "at": None,
    "line": 4,
    "column": 11,
    "node": "greet",
    "code": "workflow.invalid",
}
_GRAPH_NODE = {
    "node_id": "greet",
    "type": "task",
    "stage": "greet",
    "stage_number": 2,
    "importance": "critical",
    "handler": "hello_world",
    "description": "",
}
_GRAPH_EDGE = {"source": "start", "target": "greet", "kind": "all_of", "label": None}
_LETTER = {
    "dead_letter_id": _LETTER_ID,
    "queue": "dag-jobs",
    "message_id": "m-1",
    "reason": "WorkflowNotFound",
    "description": "no workflow is named 'helo_world'",
    "body": {"workflow_id": "helo_world"},
    "created_at": _T0,
    "is_replayable": True,
    "job_id": None,
    "node_id": None,
}
_JANITOR_ACTION = {
    "action_id": "5d1a0c44-7a4e-4b0b-9f53-0a4a5f1f9e02",
    "run_id": "c1b7a0de-90c5-4a1e-8b64-6a1f5b2f7d03",
    "action_type": "lease_lapsed",
    "target_type": "job",
    "target_id": JOB_ID,
    "reason": "the job has tasks whose leases have lapsed, and its owner, who lives, has not touched it for 412 s",
    "detail": {"owner_id": _OWNER_ID, "epoch": 1, "seconds": 412.0},
    "created_at": _T3,
}
_INSTANCE = {
    "host": "node-1",
    "pid": 4711,
    "software_version": "0.1.0",
    "started_at": _T0,
    "heartbeat_at": _T3,
    "stats": {"cycles": 812},
    "heartbeat_age_seconds": 2.4,
    "is_alive": True,
}
_RUNNING = {
    "task_id": f"{JOB_ID}_greet_1",
    "handler": "hello_world",
    "queue": "dag-worker-tasks",
    "started_at": _T2,
    "progress": None,
}
_QUEUE = {
    "queue": "container-tasks",
    "kind": "tasks",
    "depth": 412,
    "oldest_age_seconds": 33.5,
    "running_count": 4,
    "live_workers": 2,
    "max_running": 4,
    "is_paused": False,
}
_TASK_COUNT = {"queue": "container-tasks", "status": "running", "count": 4}
_RECORD = {
    "workflow_id": "hello_world",
    "jobs": 120,
    "active": 3,
    "completed": 115,
    "not_completed": 2,
    "p50_seconds": 1.2,
    "p95_seconds": 3.4,
}
_CHECK = {"name": "database", "is_ok": True, "detail": "answers in 2 ms", "hint": None}
_READY = {"is_ready": True, "checks": [_CHECK]}
_OWNED = {"job_id": JOB_ID, "workflow_id": "hello_world", "status": "running", "created_at": _T0, "started_at": _T1}
_ORCHESTRATOR = {**_INSTANCE, "owner_id": _OWNER_ID, "job_count": 12, "jobs": [_OWNED]}
_WORKER = {
    **_INSTANCE,
    "worker_id": _WORKER_ID,
    "worker_type": "general",
    "queues": ["dag-worker-tasks"],
    "handlers": ["hello_world"],
    "running_count": 1,
    "running": [_RUNNING],
}
_SCHEMA = {
    "deployed": True,
    "is_current": True,
    "software": "9f86d081884c7d65",
    "stored": "9f86d081884c7d65",
    "pending": [],
    "server_version": "16.4",
    "extensions": {"plpgsql": "1.0"},
    "catalog": "0.10.0",
}
_INPUTS_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": []}
_REFUSED = {"file": "tiles.yaml", "problems": [_MISTAKE]}

# By the name of the model in the description.
MODELS: dict[str, Any] = {
    "Alive": {"status": "alive", "silent_seconds": 0.2},
    "Answer": _ANSWER,
    "Attempt": _ATTEMPT,
    "TimelineEntry": _BAR,
    "Check": _CHECK,
    "Children": _CHILDREN,
    "DeadLetterSummary": _LETTER,
    "EventEntry": _EVENT,
    "Cancelled": {
        "job_id": JOB_ID, "status": "running", "requested_at": _T1, "requested_by": "ada", "reason": "wrong file",
        "is_over": False, "tasks": [_STOPPING],
    },
    "GraphEdge": _GRAPH_EDGE,
    "GraphNode": _GRAPH_NODE,
    "Health": {
        **_READY, "version": "0.1.0", "database_seconds": 0.002, "live_orchestrators": 1, "live_workers": 2,
    },
    "JobDetail": {
        "job": _JOB, "is_over": True, "seconds": 1.42, "failed": [], "stages": [_STAGE], "nodes": [_SHOWN_NODE],
        "outcomes": _OUTCOMES, "deliverables": {"message": _DELIVERABLE}, "trouble": None,
    },
    "Deliverable": _DELIVERABLE,
    "Outcomes": _OUTCOMES,
    "Primary": _PRIMARY,
    "Secondary": _SECONDARY,
    "JobRequest": _SUBMISSION,
    "JobLogLine": {**_LOG_LINE, "node_id": "greet", "attempt": 1},
    "JanitorAction": _JANITOR_ACTION,
    "JanitorRun": {
        "run_id": _JANITOR_ACTION["run_id"], "is_dry_run": True, "actions": [_JANITOR_ACTION], "left_to_others": [],
        "prunable_jobs": 0,
    },
    "JobSummary": _SUMMARY,
    "LogLine": _LOG_LINE,
    "Migrated": {"changes": ["add column dag_jobs.labels"], "pending": [], "is_current": True},
    "Mistake": _MISTAKE,
    "NodeDetail": {
        "node": _NODE_STATE, "type": "task", "stage": "greet", "attempts": [_ATTEMPT], "checkpoints": [_CHECKPOINT],
        "output_url": None,
    },
    "NodeState": _NODE_STATE,
    "OrchestratorSummary": _ORCHESTRATOR,
    "OwnedJob": _OWNED,
    "QueueSummary": _QUEUE,
    "Readiness": _READY,
    "Reason": _REASON,
    "Receipt": {"accepted": True},
    "RefusedFile": _REFUSED,
    "Replayed": {"dead_letter_id": _LETTER_ID, "queue": "dag-jobs", "message_id": "m-1", "job_id": None},
    "RetryWish": {"node": "greet", "stage": None, "failed_children": None, "by": "ada", "reason": "a new file"},
    "Resumed": {
        "job_id": JOB_ID, "status": "resumed", "nodes": ["join", "end"], "children": {"split": 3}, "resume_count": 1,
    },
    "RunningTask": _RUNNING,
    "SavedCheckpoint": _CHECKPOINT,
    "SchemaStatus": _SCHEMA,
    "ShownJob": _JOB,
    "ShownNode": _SHOWN_NODE,
    "StageSummary": _STAGE,
    "StoppingTask": _STOPPING,
    "Stats": {
        "jobs": {"completed": 115, "failed": 2}, "tasks": [_TASK_COUNT], "are_tasks_complete": True, "events": 4096,
        "dead_letters": 1, "watchers": 3, "database_bytes": 9_437_184, "recent_hours": 24, "recent": [_RECORD],
    },
    "Tables": {"tables": {"dag_jobs": 120, "dag_job_events": 4096}},
    "TaskCount": _TASK_COUNT,
    "TaskError": {"message": "the source answers 404", "blame": "data", "code": "source.missing"},
    "Validation": {
        "is_valid": False, "workflow_id": None, "version": None, "nodes": None, "inputs_schema": None,
        "problems": [_MISTAKE],
    },
    "Waiting": {"status": "running", "nodes": [_WAITING_NODE], "next": None},
    "WaitingNode": _WAITING_NODE,
    "Wish": {"by": "ada", "reason": "wrong file"},
    "WorkerSummary": _WORKER,
    "WorkflowDetail": {
        **_WORKFLOW_SUMMARY, "timeout_seconds": 7200.0, "inputs_schema": _INPUTS_SCHEMA,
        "definition": {"workflow_id": "hello_world", "nodes": {"start": {"type": "start", "next": ["greet"]}}},
    },
    "WorkflowGraph": {
        "workflow_id": "hello_world", "nodes": [_GRAPH_NODE], "edges": [_GRAPH_EDGE], "mermaid": "flowchart TD\n",
    },
    "WorkflowPage": {"items": [_WORKFLOW_SUMMARY], "next": None, "refused": [_REFUSED]},
    "WorkflowStatistics": _RECORD,
    "WorkflowSummary": _WORKFLOW_SUMMARY,
}  # fmt: skip


def attach(description: dict[str, Any]) -> None:
    """Put the examples into an OpenAPI description; a page's is a page of its items'."""
    for name, schema in description["components"]["schemas"].items():
        example = MODELS.get(name)
        if example is None and name.startswith("Page_"):
            example = {"items": [MODELS[name.removeprefix("Page_").removesuffix("_")]], "next": None}
        if example is not None:
            schema.setdefault("examples", [example])
