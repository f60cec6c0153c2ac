"""Triggers that refuse transitions that `jobs/states` does not allow, generated from its tables.

The whole rule is in each trigger's WHEN clause: a legal update costs a few comparisons, and PL/pgSQL runs only to
refuse. The functions they call are in sql/schema/90_after.sql.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

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
    guards = [trigger for cycle in GUARDED_TABLES for trigger in (_insert_guard(cycle), _move_guard(cycle))]
    return [*guards, _immutable(WorkflowDefinition, unless_equal=True), _immutable(JobEvent, unless_equal=False)]


def _insert_guard(cycle: GuardedTable) -> Trigger:
    rule = f"NEW.status NOT IN ({_listed(cycle.initial)})"
    return _trigger(cycle.record, "births", "BEFORE INSERT", rule, "refuse_transition")


def _move_guard(cycle: GuardedTable) -> Trigger:
    rule = f"OLD.status <> NEW.status AND NOT CASE OLD.status\n{_arms(cycle)}\n    ELSE false END"
    # Afterwards: before, PostgreSQL would lock every row once more and work out its generated columns, whatever WHEN
    # says.
    return _trigger(cycle.record, "moves", "AFTER UPDATE OF status", rule, "refuse_transition")


def _arms(cycle: GuardedTable) -> str:
    states_left = sorted(set(cycle.moves) | set(cycle.reruns))
    arms = ((state, _allowed(cycle, state)) for state in states_left)
    return "\n".join(f"    WHEN '{state}' THEN {allowed}" for state, allowed in arms if allowed)


def _allowed(cycle: GuardedTable, state: StrEnum) -> str:
    ways = []
    if moves := cycle.moves.get(state):
        ways.append(f"NEW.status IN ({_listed(moves)})")
    if reruns := cycle.reruns.get(state):
        ways.append(f"(NEW.status IN ({_listed(reruns)}) AND NEW.{cycle.counter} = OLD.{cycle.counter} + 1)")
    return " OR ".join(ways)


def _immutable(record: type[Record], *, unless_equal: bool) -> Trigger:
    # An upsert that writes the same content again changes nothing, and may pass where content is the key.
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
