"""A page of jobs is read in the order of an index, without sorting, for every combination of filters."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import RawCursor

from dagmaster.database.connect import conninfo
from dagmaster.database.queries import numbered
from dagmaster.database.reads.api import PLANNING

pytestmark = pytest.mark.requirement("O1")

JOBS = 20_000
PAGE = 51
# One value that nearly all jobs have, and one that few have, evenly spread over time.
VALUES: dict[str, tuple[str | None, ...]] = {
    "status": (None, "completed", "failed"),
    "workflow_id": (None, "daily", "yearly"),
    "submitted_by": (None, "catalogue", "ada"),
}
RARE = {"failed", "yearly", "ada"}
COMBINATIONS = [dict(zip(VALUES, chosen, strict=True)) for chosen in itertools.product(*VALUES.values())]


@pytest.fixture(scope="module")
def many_jobs(shared_database: str) -> str:
    with psycopg.connect(shared_database, autocommit=True) as connection:
        connection.execute("INSERT INTO dagapp.dag_workflow_definitions VALUES ('h', 'daily', '1', '{}')")
        connection.execute(
            """
            INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, definition_hash, status, input_params,
                                         submitted_by, correlation_id, created_at)
            SELECT dagapp.first_uuid_at(now() - make_interval(secs => i)),
                   CASE WHEN i %% 200 = 7 THEN 'yearly' ELSE 'daily' END, '1', 'h', 'pending', '{}',
                   CASE WHEN i %% 210 = 7 THEN 'ada' WHEN i %% 5 = 0 THEN NULL ELSE 'catalogue' END,
                   'order-' || i / 10, now() - make_interval(secs => i)
              FROM generate_series(1, %s) AS i
            """,
            [JOBS],
        )
        connection.execute("ALTER TABLE dagapp.dag_jobs DISABLE TRIGGER USER")
        connection.execute(
            "UPDATE dagapp.dag_jobs SET status = CASE WHEN extract(epoch FROM created_at)::bigint % 190 = 7 "
            "THEN 'failed' ELSE 'completed' END"
        )
        connection.execute("ALTER TABLE dagapp.dag_jobs ENABLE TRIGGER USER")
    return shared_database


@pytest.fixture(scope="module")
def counted_jobs(many_jobs: str) -> str:
    with psycopg.connect(many_jobs, autocommit=True) as connection:
        connection.execute("ANALYZE dagapp.dag_jobs")
    return many_jobs


def plan_of(dsn: str, statement: str = "api_jobs", **filters: Any) -> dict[str, Any]:
    """The plan of a statement on a connection with the API's settings, with the actual numbers of rows."""
    text, names = numbered(statement)
    values = [{"limit": PAGE, **filters}.get(name) for name in names]
    settings = {**PLANNING, "enable_bitmapscan": "on"} if "words" in filters else PLANNING
    with psycopg.connect(conninfo(dsn, "test", 15, 3, 10, settings=settings), autocommit=True) as connection:
        cursor = RawCursor(connection)
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) {text}", values)
        (explained,) = cursor.fetchone() or (None,)
    plan: dict[str, Any] = (json.loads(explained) if isinstance(explained, str) else explained)[0]["Plan"]
    return plan


def plan_nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from plan_nodes(part)


def visited(plan: dict[str, Any]) -> int:
    """Rows that were read, including those that a filter removed."""
    scans = [part for part in plan_nodes(plan) if "Scan" in part["Node Type"]]
    return sum(part["Actual Rows"] + part.get("Rows Removed by Filter", 0) for part in scans)


@pytest.mark.parametrize(
    "filters", COMBINATIONS, ids=lambda chosen: "-".join(str(v) for v in chosen.values() if v) or "all"
)
def test_each_combination_of_filters_is_read_in_order_from_an_index(many_jobs, filters):
    """This holds even if the table has no statistics yet."""
    kinds = [part["Node Type"] for part in plan_nodes(plan_of(many_jobs, **filters))]

    assert kinds == ["Limit", "Index Scan"]


@pytest.mark.parametrize(
    "filters", COMBINATIONS, ids=lambda chosen: "-".join(str(v) for v in chosen.values() if v) or "all"
)
def test_no_more_jobs_are_read_than_the_rarest_filter_matches(counted_jobs, filters):
    """With filters that most jobs pass, one page of rows is read; with a rare one, only the rows that match it."""
    plan = plan_of(counted_jobs, **filters)

    is_rare = RARE & set(filters.values())
    assert visited(plan) <= (JOBS // 100 if is_rare else 2 * PAGE)


@pytest.mark.parametrize("name", ["workflow_id", "submitted_by"])
def test_later_pages_read_no_more_rows_than_the_first(counted_jobs, name):
    with psycopg.connect(counted_jobs) as connection:
        (after,) = (
            connection.execute("SELECT job_id FROM dagapp.dag_jobs ORDER BY 1 OFFSET 2000 LIMIT 1").fetchone() or ()
        )

    plan = plan_of(counted_jobs, after=after, **{name: VALUES[name][1]})

    assert [part["Node Type"] for part in plan_nodes(plan)] == ["Limit", "Index Scan"]
    assert visited(plan) <= 2 * PAGE


def test_a_filter_by_correlation_id_reads_only_the_jobs_that_match(counted_jobs):
    assert visited(plan_of(counted_jobs, correlation_id="order-77")) == 10


def test_a_filter_by_several_states_reads_about_a_page_for_each(counted_jobs):
    plan = plan_of(counted_jobs, "api_jobs_in_states", statuses=["failed", "completed"])

    assert visited(plan) <= 4 * PAGE + 2


@pytest.mark.parametrize(
    ("words", "most"), [("order-77", 500), ("daily", 3 * PAGE), ("yearly catalogue", 2 * JOBS // 100), ("no such", 5)]
)
def test_a_search_reads_only_the_matching_jobs_or_about_a_page(counted_jobs, words, most):
    """Rare words are looked up in the index of words; for frequent ones the list is read in its order."""
    with psycopg.connect(counted_jobs, autocommit=True) as connection:
        connection.execute("ANALYZE dagapp.dag_job_search")

    assert visited(plan_of(counted_jobs, "api_search_jobs", words=words)) <= most


@pytest.mark.parametrize("filters", [{}, {"workflow_id": "daily"}, {"workflow_id": "yearly"}, {"submitted_by": "ada"}])
def test_counting_jobs_reads_a_limited_number_of_rows(counted_jobs, filters):
    plan = plan_of(
        counted_jobs, "api_job_counts", statuses=["pending", "failed", "completed"], **{"limit": 101, **filters}
    )

    assert visited(plan) <= 2 * JOBS // 100 * 3 + 101
