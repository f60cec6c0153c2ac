"""Named crash points: places where a test can make the process crash.

`reach("name")` does nothing unless that point was armed (settings: CRASH_POINT=name or name:3 for the third time). An
armed point ends the process at once, as kill -9 would: no clean-up, no flush, no rollback message.
"""

import os
from typing import Final

# Transactions of several statements, all of which run before `before-commit`. Several transactions may share a name.
TRANSACTIONS: Final = (
    "submit",
    "submit_once",
    "take_messages",
    "rerun",
    "fail_job",
    "report_payloads",
    "record_late",
    "store_payload",
    "janitor",
    "retention",
    "documents",
    "submit_asset",
    "change_asset",
    "change_platform",
    "prepare_catalogue",
    "edit_layer",
    "publish_layer",
    "record_command",
    "external_layers",
    "external_database",
    "invalidate_cache",
    "create_key",
    "asset_upkeep",
    "adopt_dataset",
    "callbacks",
    "upload",
    "external_copies",
    "external_claim",
    "fail_tasks",
)
# Single statements, which commit themselves: `before-commit` is before the statement is sent.
STATEMENTS: Final = (
    "replay_dead_letter",
    "drop_dead_letter",
    "enqueue_message",
    "request_cancel",
    "beat_orchestrator",
    "end_stuck_owners",
    "claim_jobs",
    "release_unknown_jobs",
    "review_deferred",
    "retire_orchestrator",
    "forget_silent_instances",
    "make_event_partitions",
    "beat_worker",
    "take_stops",
    "set_queue",
    "renew_leases",
    "retire_worker",
    "save_checkpoint",
    "outbox_claim",
    "outbox_forget",
    "outbox_delete",
    "outbox_postpone",
)
# Steps of orchestrators, workers and handlers, from the claim of a job to the reports of its tasks; then the callback
# to the submitter. The steps `relay.…`, of the relay and of the job queue, exist only with a message broker.
STEPS: Final = (
    "orchestrator.claimed",
    "orchestrator.fenced",
    "orchestrator.before-commit",
    "orchestrator.after-commit",
    "orchestrator.after-publish",
    "worker.after-receive",
    "worker.before-claim",
    "worker.after-claim",
    "worker.before-settle",
    "worker.after-settle",
    "worker.before-store",
    "worker.after-store",
    "worker.after-handler",
    "worker.after-report",
    "handler.before-publish",
    "handler.after-publish",
    "callback.after-post",
    "relay.after-send",
    "relay.after-store",
)


def around(name: str) -> tuple[str, str]:
    """The points on both sides of a commit."""
    return f"{name}.before-commit", f"{name}.after-commit"


POINTS: Final = (*STEPS, *(point for name in (*TRANSACTIONS, *STATEMENTS) for point in around(name)))

_armed: tuple[str, int] | None = None


def arm(point: str | None) -> None:
    """Arm one point (`name` or `name:count`), or none."""
    global _armed  # noqa: PLW0603 - one process, one crash
    if point is None:
        _armed = None
        return
    name, _, count = point.partition(":")
    if name not in POINTS:
        raise ValueError(f"no crash point named {name!r}; known: {', '.join(POINTS)}")
    _armed = (name, int(count or 1))


def armed() -> str | None:
    """The armed point in the form that `arm` accepts: for child processes of this one."""
    return _armed and f"{_armed[0]}:{_armed[1]}"


def reach(point: str) -> None:
    global _armed  # noqa: PLW0603
    if _armed is None or _armed[0] != point:
        return
    if _armed[1] <= 1:
        os._exit(137)
    _armed = (point, _armed[1] - 1)
