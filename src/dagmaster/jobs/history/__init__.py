"""Rebuild jobs and nodes from their events alone, and report where events and rows disagree.

    events ──▶ replay.py  the rebuilt job: every step is legal, in order, allowed by the graph and the retry policy
    rows   ──▶ audit.py   nodes, tasks and results agree with the events, attempt by attempt
           ──▶ finish     the rules for a job that has ended

An `Audit` takes events by sequence, then rows in any order. It holds a few hundred bytes per node, so a hundred
thousand children are checked while their rows are streamed. It does not use the planner or `view`: the rules are
written a second time, in the simplest form. Jobs that still run are checked only for what holds at any time.
"""

from dagmaster.jobs.history.audit import Audit
from dagmaster.jobs.history.findings import FINDINGS_PER_JOB, FindingCode, HistoryFinding
from dagmaster.jobs.history.replay import replay
from dagmaster.jobs.history.rows import EventRow, JobRow, NodeRow, ResultRow, TaskRow

__all__ = [
    "FINDINGS_PER_JOB",
    "Audit",
    "EventRow",
    "FindingCode",
    "HistoryFinding",
    "JobRow",
    "NodeRow",
    "ResultRow",
    "TaskRow",
    "replay",
]
