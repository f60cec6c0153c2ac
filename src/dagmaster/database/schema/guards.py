"""Triggers: guards that refuse transitions which `jobs/states` does not allow, generated from its tables, and triggers
that record the effects of changes on searches, assets and callbacks.

The whole rule of a guard is in its WHEN clause: a legal update costs a few comparisons, and PL/pgSQL runs only to
refuse. The functions that guards call are in sql/schema/90_after.sql.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from dagmaster.assets.external_copies import EXPORT_WORKFLOWS, WITHDRAWAL_WORKFLOW
from dagmaster.assets.model import AssetEvent, AssetSubmission, StacDocument
from dagmaster.jobs import states
from dagmaster.jobs.model import Job, JobEvent, NodeState, Task, WorkflowDefinition
from dagmaster.records import SCHEMA, Record

ILLEGAL_TRANSITION = "DM001"
IMMUTABLE_ROW = "DM002"

Moves = Mapping[StrEnum, frozenset[StrEnum]]


@dataclass(frozen=True, slots=True)
class Trigger:
    name: str
    table: str
    sql: str


@dataclass(frozen=True, slots=True)
class GuardedTable:
    """The transitions that the rows of one table may make. `counter` is the column that a rerun increments."""

    record: type[Record]
    initial: Collection[StrEnum]
    moves: Moves
    reruns: Moves
    counter: str | None = None


GUARDED_TABLES: tuple[GuardedTable, ...] = (
    GuardedTable(Job, states.JOB_INITIAL, states.JOB_MOVES, states.JOB_RERUNS, "resume_count"),  # type: ignore[arg-type]
    GuardedTable(NodeState, states.NODE_INITIAL, states.NODE_MOVES, states.NODE_RERUNS, "run"),  # type: ignore[arg-type]
    GuardedTable(Task, states.TASK_INITIAL, states.TASK_MOVES, {}),  # type: ignore[arg-type]
)


def triggers() -> list[Trigger]:
    guards = [trigger for guarded in GUARDED_TABLES for trigger in (_insert_guard(guarded), _move_guard(guarded))]
    return [
        *guards,
        _immutable(WorkflowDefinition, unless_equal=True),
        _immutable(JobEvent, unless_equal=False),
        _immutable(AssetEvent, unless_equal=False),
        *_search_triggers(),
        *_asset_triggers(),
        *_external_triggers(),
        *_callback_triggers(),
    ]


def _search_triggers() -> list[Trigger]:
    """They call the function of sql/schema/92_job_search.sql: a job can be found as soon as it exists, and by its
    error when it has failed."""
    failed = "NEW.error_message IS NOT NULL AND OLD.status <> NEW.status"
    return [
        _trigger(Job, "is_searchable", "AFTER INSERT", "true", "make_searchable"),
        _trigger(Job, "error_is_searchable", "AFTER UPDATE OF status", failed, "make_searchable"),
    ]


def _asset_triggers() -> list[Trigger]:
    """The functions of sql/schema/95_assets.sql: the end of a job is recorded in the revision that it processes, in
    the same transaction, and reviewed revisions do not change."""
    has_asset, changes = "NEW.asset_id IS NOT NULL", "OLD.status <> NEW.status"
    ended = f"OLD.status IN ({_listed(states.JOB_RERUNS)})"
    return [
        _trigger(Job, "reaches_its_revision", "AFTER UPDATE OF status", f"{has_asset} AND {changes}", "follow_job"),
        _trigger(Job, "leaves_its_revision", "AFTER DELETE", "OLD.asset_id IS NOT NULL", "forget_job"),
        _trigger(
            Job, "stays_reviewed", "AFTER UPDATE OF status", f"{has_asset} AND {changes} AND {ended}", "refuse_rerun"
        ),
        _trigger(StacDocument, "stay_reviewed", "BEFORE INSERT OR UPDATE", "true", "refuse_document"),
    ]


def _external_triggers() -> list[Trigger]:
    """The functions of sql/schema/99_external.sql: the end of a job is recorded in the revision whose external copies
    it makes or removes."""
    workflows = ", ".join(f"'{workflow_id}'" for workflow_id in (*EXPORT_WORKFLOWS, WITHDRAWAL_WORKFLOW))
    has_ended = f"OLD.status <> NEW.status AND NEW.status IN ({_listed(states.JOB_TERMINAL)})"
    rule = f"NEW.workflow_id IN ({workflows}) AND {has_ended}"
    is_external = f"OLD.workflow_id IN ({workflows})"
    return [
        _trigger(Job, "reaches_external_copies", "AFTER UPDATE OF status", rule, "follow_external_job"),
        _trigger(Job, "leaves_external_copies", "AFTER DELETE", is_external, "forget_external_job"),
    ]


def _callback_triggers() -> list[Trigger]:
    """They call the functions of sql/schema/96_callbacks.sql, which record callbacks."""
    has_url, has_started = "NEW.callback_url IS NOT NULL", "NEW.status <> 'pending'"
    # The first comparison decides for almost all jobs. The end of an asset's job is reported by the event of the asset.
    rule = f"{has_url} AND NEW.asset_id IS NULL AND OLD.status <> NEW.status AND {has_started}"
    return [
        _trigger(Job, "calls_back", "AFTER UPDATE OF status", rule, "record_job_callback"),
        _trigger(AssetEvent, "calls_back", "AFTER INSERT", "NEW.asset_id IS NOT NULL", "record_event_callbacks"),
        _trigger(AssetSubmission, "calls_back", "AFTER INSERT", has_url, "record_request_callbacks"),
    ]


def _insert_guard(guarded: GuardedTable) -> Trigger:
    rule = f"NEW.status NOT IN ({_listed(guarded.initial)})"
    return _trigger(guarded.record, "births", "BEFORE INSERT", rule, "refuse_transition")


def _move_guard(guarded: GuardedTable) -> Trigger:
    rule = f"OLD.status <> NEW.status AND NOT CASE OLD.status\n{_arms(guarded)}\n    ELSE false END"
    # AFTER: for a BEFORE trigger PostgreSQL would lock every row once more and compute its generated columns, even if
    # WHEN is false.
    return _trigger(guarded.record, "moves", "AFTER UPDATE OF status", rule, "refuse_transition")


def _arms(guarded: GuardedTable) -> str:
    sources = sorted(set(guarded.moves) | set(guarded.reruns))
    arms = ((state, _allowed(guarded, state)) for state in sources)
    return "\n".join(f"    WHEN '{state}' THEN {allowed}" for state, allowed in arms if allowed)


def _allowed(guarded: GuardedTable, state: StrEnum) -> str:
    conditions = []
    if moves := guarded.moves.get(state):
        conditions.append(f"NEW.status IN ({_listed(moves)})")
    if reruns := guarded.reruns.get(state):
        conditions.append(f"(NEW.status IN ({_listed(reruns)}) AND NEW.{guarded.counter} = OLD.{guarded.counter} + 1)")
    return " OR ".join(conditions)


def _immutable(record: type[Record], *, unless_equal: bool) -> Trigger:
    # An upsert that writes the same content again changes nothing, and is allowed where the content is the key.
    rule = "OLD.* IS DISTINCT FROM NEW.*" if unless_equal else "true"
    return _trigger(record, "unchanging", "BEFORE UPDATE", rule, "refuse_change")


def _trigger(record: type[Record], suffix: str, when: str, rule: str, function: str) -> Trigger:
    table, key = record.table.name, record.table.key or ("job_id", "sequence")
    name = f"{table}_{suffix}"
    arguments = ", ".join(f"'{column}'" for column in key)
    sql = (
        f"CREATE OR REPLACE TRIGGER {name} {when} ON {SCHEMA}.{table}\n"
        f"  FOR EACH ROW WHEN ({rule})\n"
        f"  EXECUTE FUNCTION {SCHEMA}.{function}({arguments});"
    )
    return Trigger(name, table, sql)


def _listed(values: Iterable[StrEnum]) -> str:
    return ", ".join(f"'{value}'" for value in sorted(values))
