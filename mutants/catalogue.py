"""The bugs, in the order of docs/reliability.md, and the layers of tests that must detect them.

Where a known bug cannot occur in this design its entry says so (`adapted`), and which bug replaces it. The text to
replace must exist exactly once: a test in `tests/mutants` fails if the code has changed and this list has not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Layer:
    """Tests of one kind."""

    name: str
    about: str


PROPERTIES: Final = Layer("properties", "the pure core: unit tests and random workflows against a naive model")
GUARDS: Final = Layer("guards", "what the database itself refuses")
CONFORMANCE: Final = Layer("conformance", "the rules of the ledger, on PostgreSQL")
INTERLEAVINGS: Final = Layer("interleavings", "pairs of transactions, in every order of their statements")
SIMULATION: Final = Layer("simulation", "the real loops on a virtual clock under seeded faults, with an effect ledger")
CRASH_POINTS: Final = Layer("crash points", "one crash, freeze or lost response in each run, at each commit in turn")
ENGINE: Final = Layer("engine", "orchestrators, workers and janitors on a real PostgreSQL")


@dataclass(frozen=True, slots=True)
class Edit:
    """A text that is in a file exactly once, and its replacement."""

    path: str  # relative to the root
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    number: int
    bug: str  # as docs/reliability.md names it
    layer: Layer
    tests: tuple[str, ...]  # arguments of pytest
    edits: Sequence[Edit]
    adapted: str = ""  # why it differs from the known bug
    postgres_tests: tuple[str, ...] = ()  # if both ledgers are changed: the tests that must detect it on PostgreSQL

    @property
    def selections(self) -> tuple[tuple[str, ...], ...]:
        """The arguments of pytest for each run; each run has to detect the bug."""
        return (self.tests, self.postgres_tests) if self.postgres_tests else (self.tests,)

    @property
    def files(self) -> str:
        return ", ".join(dict.fromkeys(edit.path.removeprefix("src/dagmaster/") for edit in self.edits))


SQL: Final = "src/dagmaster/database/sql"
MEMORY: Final = "src/dagmaster/testing/memory_ledger.py"
ORCHESTRATOR: Final = "src/dagmaster/database/ledger/orchestrator.py"

_CONFORMANCE: Final = (
    "tests/database/test_ledger_conformance.py",
    "-k",
    "postgres",
    "--requirement=E5",
    "--requirement=E6",
    "--requirement=E7",
    "--requirement=Q1",
    "--requirement=E19",
    "--requirement=E11",
    "--requirement=E27",
    "--requirement=W7",
)
_SCHEMA: Final = ("tests/database/test_schema.py", "--requirement=E1", "--requirement=D3")
_SEEDS: Final = ("tests/simulation/test_simulation.py", "-k", "nothing_bad_happens", "--seeds", "500")

MUTANTS: Final = (
    Mutant(
        1,
        "drop the claim token from the fence",
        CONFORMANCE,
        _CONFORMANCE,
        [Edit(f"{SQL}/advance.sql", " AND j.claim_token = k.token", "")],
    ),
    Mutant(
        2,
        "re-read the token after waking",
        SIMULATION,
        _SEEDS,
        [
            Edit(
                MEMORY,
                "job_ids = sorted(claim.job_id for claim in claims if self._holds(owner_id, claim))",
                "job_ids = sorted(claim.job_id for claim in claims"
                " if self._holds((row := self.db.jobs[claim.job_id]).owner_id or owner_id,"
                " Claim(claim.job_id, row.claim_token or claim.token, claim.epoch)))",
            ),
            Edit(
                f"{SQL}/advance.sql",
                "AND j.owner_id IS NOT DISTINCT FROM %(owner_id)s AND j.claim_token = k.token",
                "AND j.owner_id IS NOT DISTINCT FROM (SELECT x.owner_id FROM dagapp.dag_jobs x"
                " WHERE x.job_id = k.job_id)"
                " AND j.claim_token = (SELECT x.claim_token FROM dagapp.dag_jobs x WHERE x.job_id = k.job_id)",
            ),
        ],
        adapted="a loaded job has no token, so the loop cannot read it again: the mutant reads it in the ledger",
        postgres_tests=_CONFORMANCE,
    ),
    Mutant(
        3,
        "now() for clock_timestamp() in leases",
        GUARDS,
        _SCHEMA,
        [Edit(f"{SQL}/schema/10_before.sql", "clock_timestamp()) $$", "now()) $$")],
        adapted="every lease and deadline uses one SQL function: the mutant changes it",
    ),
    Mutant(
        4,
        "drop the index of one live attempt",
        GUARDS,
        _SCHEMA,
        [
            Edit(
                "src/dagmaster/jobs/model.py",
                '"dag_tasks_one_live", ("job_id", "node_id"), unique=True',
                '"dag_tasks_one_live", ("job_id", "node_id"), unique=False',
            )
        ],
    ),
    Mutant(
        5,
        "complete without state = 'running'",
        CONFORMANCE,
        _CONFORMANCE,
        [
            Edit(
                f"{SQL}/workers.sql",
                "              AND t.status = 'running' AND t.worker_id = %(worker_id)s\n"
                "              FOR NO KEY UPDATE) AS locked\n), done AS (",
                "              AND t.worker_id = %(worker_id)s\n"
                "              FOR NO KEY UPDATE) AS locked\n), done AS (",
            )
        ],
    ),
    Mutant(
        6,
        "fan-in by count(*)",
        CONFORMANCE,
        _CONFORMANCE,
        [
            Edit(
                f"{SQL}/advance.sql",
                "remaining = coalesce(m.total, n.remaining) - coalesce(m.ended, 0),",
                "remaining = (SELECT count(*) FROM dagapp.dag_node_states c WHERE c.job_id = n.job_id"
                " AND c.parent_node_id = n.node_id AND c.completed_at IS NULL),",
            )
        ],
    ),
    Mutant(
        7,
        "decrement without the state guard",
        PROPERTIES,
        ("tests/jobs/test_plan_properties.py",),
        [
            Edit(MEMORY, "if r.job_id == job_id and not r.processed]", "if r.job_id == job_id]"),
            Edit(
                f"{SQL}/advance.sql", "WHERE x.job_id = held.job_id AND NOT x.processed", "WHERE x.job_id = held.job_id"
            ),
            Edit(f"{SQL}/advance.sql", "WHERE r.ctid = k.place AND r.processed IS NOT TRUE", "WHERE r.ctid = k.place"),
        ],
        adapted="the guard is that a result is processed once: the mutant processes it in every step",
        postgres_tests=_CONFORMANCE,
    ),
    Mutant(
        8,
        "send before commit",
        CRASH_POINTS,
        ("tests/simulation/test_crash_points.py",),
        [
            Edit(MEMORY, "self._restore(saved)", "pass"),
            Edit(
                ORCHESTRATOR,
                '[pipeline.BEGIN, pipeline.Call("open_jobs", values)]',
                '[pipeline.Call("open_jobs", values), pipeline.BREAK, pipeline.BEGIN]',
            ),
        ],
        adapted="a task row is the message and cannot be sent separately: "
        "with the mutant, reports that a step took stay processed although its commit fails",
        postgres_tests=_CONFORMANCE,
    ),
    Mutant(
        9,
        "settle before claim",
        CONFORMANCE,
        _CONFORMANCE,
        [
            Edit(
                ORCHESTRATOR,
                'async with self._transaction("take_messages") as connection:\n'
                "            cursor = connection.cursor(row_factory=class_row(JobMessage))",
                "async with self._connected() as connection:\n"
                "            cursor = connection.cursor(row_factory=class_row(JobMessage))",
            )
        ],
        adapted="tasks are claimed through their rows: the mutant deletes a submission's message before its job exists",
    ),
    Mutant(
        10,
        "monitor acts without checking for changes",
        ENGINE,
        ("tests/engine/test_janitor.py",),
        [Edit(f"{SQL}/janitor.sql", "       AND j.epoch = s.epoch\n       AND j.version = s.version\n", "")],
        adapted="the janitor only ends claims: the mutant does not check whether the job has changed since it was read",
    ),
    Mutant(
        11,
        "drop the terminal trigger",
        GUARDS,
        _SCHEMA,
        [
            Edit(
                "src/dagmaster/database/schema/guards.py",
                'rule = f"OLD.status <> NEW.status AND NOT',
                'rule = f"false AND NOT',
            )
        ],
    ),
    Mutant(
        12,
        "outbox by seq > last",
        SIMULATION,
        _SEEDS,
        [
            Edit(
                MEMORY,
                "if t.status is TaskStatus.QUEUED and t.queue == queue and t.handler in handlers",
                "if t.status is TaskStatus.QUEUED and t.queue == queue and t.handler in handlers"
                " and t.position > max((x.position for x in self.db.tasks.values()"
                " if x.worker_id == worker_id), default=0)",
            ),
            Edit(
                f"{SQL}/workers.sql",
                "     WHERE w.rank IS NOT NULL\n     ORDER BY w.priority DESC, w.position\n), light",
                "     WHERE w.rank IS NOT NULL AND w.position > coalesce((SELECT max(p.position)"
                " FROM dagapp.dag_tasks p WHERE p.worker_id = %(worker_id)s), 0)\n"
                "     ORDER BY w.priority DESC, w.position\n), light",
            ),
        ],
        postgres_tests=_CONFORMANCE,
        adapted="the queue consists of the queued tasks: "
        "with the mutant, a worker takes only tasks that are newer than those it took before",
    ),
    Mutant(
        13,
        "LISTEN after scan with polling off",
        ENGINE,
        ("tests/engine/test_engine.py", "--requirement=E8"),
        [Edit("src/dagmaster/database/notify/postgres.py", "self._add_received(self._topics.values())", "pass")],
        adapted="a notifier requests a scan once it listens, and after each reconnect: the mutant does not",
    ),
    Mutant(
        14,
        "retry without cap",
        PROPERTIES,
        ("tests/jobs/test_retry.py",),
        [Edit("src/dagmaster/jobs/retry.py", "if retry_count >= policy.max_attempts:", "if retry_count < 0:")],
    ),
    Mutant(
        15,
        "reclaim by own name only",
        CONFORMANCE,
        _CONFORMANCE,
        [
            Edit(
                f"{SQL}/orchestrators.sql",
                "AND NOT EXISTS (SELECT 1 FROM alive a WHERE a.owner_id = j.owner_id)",
                "AND j.owner_id = %(owner_id)s AND NOT EXISTS (SELECT 1 FROM alive a WHERE a.owner_id = j.owner_id)",
            )
        ],
    ),
    Mutant(
        16,
        "retention without the live-child guard",
        ENGINE,
        ("tests/engine/test_retention.py", "-k", "month_of_events or under_load"),
        [
            Edit(f"{SQL}/schema/85_retention.sql", "CONTINUE WHEN EXISTS (", "CONTINUE WHEN false AND EXISTS ("),
            Edit(
                f"{SQL}/schema/85_retention.sql",
                "        IF EXISTS (SELECT 1 FROM dagapp.dag_jobs j WHERE j.job_id >= month.lower_id",
                "        IF false AND EXISTS (SELECT 1 FROM dagapp.dag_jobs j WHERE j.job_id >= month.lower_id",
            ),
        ],
        adapted="children are rows of their job and are deleted with it: "
        "the mutant deletes a month of events while a job of that month exists",
    ),
    Mutant(
        17,
        "effect published outside the completion transaction",
        SIMULATION,
        _SEEDS,
        [
            Edit(
                MEMORY,
                "                processed=not accepted,\n                accepted=accepted,\n",
                "                processed=False,\n                accepted=True,\n",
            ),
            Edit(
                f"{SQL}/workers.sql",
                "           %(worker_id)s, true, false\n",
                "           %(worker_id)s, false, true\n",
            ),
        ],
        adapted="a result row publishes the effect of an attempt: with the mutant, that of a late report does too",
        postgres_tests=_CONFORMANCE,
    ),
    Mutant(
        18,
        "lock order swapped",
        INTERLEAVINGS,
        ("tests/database/test_interleavings.py", "-k", "report_to_ended"),
        [
            Edit(
                "src/dagmaster/database/maintenance/retention.py",
                '"tasks",\n    "results",',
                '"results",\n    "tasks",',
            )
        ],
        adapted="the mutant makes retention lock two tables in the opposite order",
    ),
)
