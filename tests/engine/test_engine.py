"""The engine, end to end on a real PostgreSQL."""

import asyncio
from itertools import pairwise
from textwrap import dedent, indent
from uuid import uuid4

import pytest

from dagmaster.database.ledger import orchestrator
from dagmaster.database.ledger.protocol import Demand, Report
from dagmaster.errors import InvalidRequest
from dagmaster.jobs.draft import Draft
from dagmaster.jobs.model import Submission, new_job_id
from dagmaster.jobs.states import TaskStatus
from dagmaster.orchestrator import owned
from tests.engine.harness import engine, open_gate, until, workflow


def _nodes(text, *, options=""):
    """A workflow of these nodes between `start` and `end`."""
    body = indent(dedent(text).strip(), "          ")
    return workflow(f"""
        workflow_id: tested
        version: 1
        {options}
        nodes:
{body}
          end: {{type: end}}
        """)


def _statuses(nodes):
    return {name: (node["status"], node["reason"]) for name, node in nodes.items()}


async def _wait_until_running(running, job_id, *names):
    async def all_run():
        nodes = await running.nodes(job_id)
        return all(nodes[name]["status"] == "running" for name in names)

    await until(all_run)


async def _claim(running, handler, lease_seconds=30.0, worker_id=None):
    """Claim one task as a worker would."""
    demand = Demand(running.settings.worker_queue, light_handlers=(handler,), light=1)

    async def claimed_tasks():
        return (await running.ledger.exchange(worker_id, (), demand, lease_seconds=lease_seconds)).claimed

    worker_id = worker_id or uuid4()
    (message,) = await until(claimed_tasks)
    return worker_id, message


def _report(message, output):
    return Report(message.job_id, message.node_id, message.attempt, TaskStatus.SUCCEEDED, output)


# States of jobs and nodes


FAILING = """
    start: {type: start, next: [bad, busy, unserved]}
    bad: {handler: fail, params: {message: broken}, retry: {max_attempts: 0}, next: after_bad}
    busy: {handler: gate, next: [after_busy, after_both]}
    unserved: {handler: echo, queue: container-tasks, next: after_unserved}
    after_bad: {handler: echo, next: after_both}
    after_busy: {handler: echo, next: end}
    after_both: {handler: echo, next: end}
    after_unserved: {handler: echo, next: end}
"""


async def _run_until_failure(running, definition):
    """Run a job until its critical node has failed while another one runs."""
    await running.start_worker(["dag-worker-tasks"])
    job_id = await running.submit(definition)

    async def bad_has_failed():
        return (await running.nodes(job_id))["bad"]["status"] == "failed"

    await until(bad_has_failed)
    return job_id


@pytest.mark.requirement("E1")
async def test_after_a_critical_failure_running_tasks_finish_and_no_new_ones_are_dispatched(database):
    async with engine(database, workers=0) as running:
        job_id = await _run_until_failure(running, _nodes(FAILING))

        async def unserved_is_withdrawn():
            return (await running.nodes(job_id))["unserved"]["status"] == "cancelled"

        await until(unserved_is_withdrawn)
        await asyncio.sleep(0.3)
        assert (await running.job(job_id))["status"] == "running"
        open_gate(job_id)
        job, nodes, tasks = await running.wait(job_id), await running.nodes(job_id), await running.tasks(job_id)

    assert job["status"] == "failed"
    assert job["error_message"] == "node 'bad' failed: broken"
    assert _statuses(nodes) == {
        "start": ("completed", None),
        "bad": ("failed", None),
        "busy": ("completed", None),
        "unserved": ("cancelled", "job_failed"),
        "after_bad": ("skipped", "upstream_failed"),
        "after_busy": ("cancelled", "job_failed"),
        "after_both": ("skipped", "upstream_failed"),
        "after_unserved": ("skipped", "upstream_failed"),
        "end": ("skipped", "upstream_failed"),
    }
    assert nodes["busy"]["output"] == {"passed": "busy"}
    assert {task["node_id"]: task["status"] for task in tasks} == {
        "bad": "failed",
        "busy": "succeeded",
        "unserved": "cancelled",
    }


@pytest.mark.requirement("E1")
async def test_fail_fast_cancels_running_tasks(database):
    async with engine(database, workers=0) as running:
        job_id = await _run_until_failure(running, _nodes(FAILING, options="fail_fast: true"))
        job = await running.wait(job_id)
        nodes, tasks = await running.nodes(job_id), await running.tasks(job_id)

        async def worker_has_no_tasks():
            return not running.workers[0].running

        await until(worker_has_no_tasks)

    assert job["status"] == "failed"
    assert nodes["busy"]["status"] == "cancelled"
    assert {task["node_id"]: task["status"] for task in tasks} == {
        "bad": "failed",
        "busy": "cancelled",
        "unserved": "cancelled",
    }


@pytest.mark.requirement("E1")
async def test_a_node_that_waits_for_its_retry_does_not_run_again_after_a_critical_failure(database):
    definition = _nodes("""
        start: {type: start, next: [bad, hopeful]}
        bad: {handler: gate, timeout_seconds: 0.3, retry: {max_attempts: 0}, next: end}
        hopeful: {handler: fail, retry: {max_attempts: 3, initial_delay_seconds: 60, jitter: false}, next: end}
        """)

    async with engine(database) as running:
        job = await running.run(definition)
        nodes = await running.nodes(job["job_id"])

    assert job["status"] == "failed"
    assert (nodes["hopeful"]["status"], nodes["hopeful"]["attempt"]) == ("cancelled", 1)


@pytest.mark.requirement("E1")
async def test_a_failed_optional_node_satisfies_its_successors(database):
    definition = _nodes("""
        start: {type: start, next: extra}
        extra: {handler: fail, importance: optional, retry: {max_attempts: 0}, next: after}
        after: {handler: echo, params: {size: "{{ nodes.extra.output.size | default('unknown') }}"}, next: end}
        """)

    async with engine(database) as running:
        job = await running.run(definition)
        nodes = await running.nodes(job["job_id"])

    assert job["status"] == "completed"
    assert nodes["extra"]["status"] == "failed"
    assert job["result_data"]["after"]["echoed_params"] == {"size": "unknown"}


@pytest.mark.requirement("E1")
@pytest.mark.parametrize(
    ("importance_of_next", "status"),
    [("critical", "failed"), ("important", "partial_success"), ("optional", "partial_success")],
)
async def test_a_failed_important_node_does_not_satisfy_its_successors(database, importance_of_next, status):
    definition = _nodes(f"""
        start: {{type: start, next: [main, side]}}
        main: {{handler: echo, next: end}}
        side:
          handler: fail
          params: {{message: no side}}
          importance: important
          retry: {{max_attempts: 0}}
          next: after
        after: {{handler: echo, importance: {importance_of_next}, next: last}}
        last: {{type: end}}
        """)

    async with engine(database) as running:
        job = await running.run(definition)
        nodes = await running.nodes(job["job_id"])

    assert job["status"] == status
    assert _statuses(nodes)["after"] == ("skipped", "upstream_failed")
    assert nodes["main"]["status"] == nodes["end"]["status"] == "completed"
    if status == "failed":
        assert job["error_message"] == "node 'side' failed: no side"


@pytest.mark.requirement("E1")
async def test_the_message_of_a_failed_job_names_the_critical_failure_and_not_an_earlier_optional_one(database):
    definition = _nodes("""
        start: {type: start, next: extra}
        extra: {handler: fail, params: {message: harmless}, importance: optional, retry: {max_attempts: 0}, next: bad}
        bad: {handler: fail, params: {message: fatal}, retry: {max_attempts: 0}, next: end}
        """)

    async with engine(database) as running:
        job = await running.run(definition)

    assert job["error_message"] == "node 'bad' failed: fatal"


@pytest.mark.requirement("E1")
async def test_a_job_with_nothing_to_dispatch_completes_without_running(database):
    async with engine(database, workers=0) as running:
        job = await running.run(_nodes("start: {type: start, next: end}"))
        events = [event["event_type"] for event in await running.events(job["job_id"])]

    assert job["status"] == "completed"
    assert job["started_at"] is None
    assert events == ["job_created", "node_ready", "node_completed", "node_ready", "node_completed", "job_completed"]


# Creating jobs


@pytest.mark.requirement("E2")
async def test_a_job_is_created_in_one_transaction_pending_and_without_an_owner(database):
    async with engine(database, orchestrators=0, workers=0) as running:
        job_id = await running.submit("hello_world")
        job, nodes, events = await running.job(job_id), await running.nodes(job_id), await running.events(job_id)

    assert (job["status"], job["owner_id"], job["last_sequence"]) == ("pending", None, 2)
    assert {name: node["status"] for name, node in nodes.items()} == {
        "start": "ready",
        "greet": "pending",
        "repeat": "pending",
        "end": "pending",
    }
    assert [(e["sequence"], e["event_type"], e["node_id"]) for e in events] == [
        (1, "job_created", None),
        (2, "node_ready", "start"),
    ]
    xmin = "SELECT xmin::text AS xmin FROM dagapp.{} WHERE job_id = %s"
    async with engine(database, orchestrators=0, workers=0) as running:
        tables = ("dag_jobs", "dag_node_states", "dag_job_events")
        transactions = {row["xmin"] for name in tables for row in await running.rows(xmin.format(name), job_id)}
    assert len(transactions) == 1


@pytest.mark.requirement("E2")
async def test_several_submissions_are_all_created_or_none(database):
    async with engine(database, orchestrators=0, workers=0) as running:
        good, bad = (
            Submission(workflow_id="echo_test"),
            Submission(workflow_id="echo_test", input_params={"message": 1}),
        )
        with pytest.raises(InvalidRequest):
            await running.submit_all([good, bad, good])

        assert await running.value("SELECT count(*) FROM dagapp.dag_jobs") == 0


# Dispatch and events


MIXED = """
    workflow_id: mixed
    version: 1
    nodes:
      start: {type: start, next: [spread, lone]}
      lone: {handler: flaky_echo, params: {failure_rate: 1, seed: 1}, retry: {max_attempts: 5,
        initial_delay_seconds: 0.02, max_delay_seconds: 0.05}, next: choose}
      choose: {type: conditional, condition: "{{ 1 > 2 }}", on_true: never, on_false: after}
      never: {handler: echo}
      after: {handler: sleep, params: {seconds: 0.3}}
      spread:
        type: fan_out
        source: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]
        max_parallel: 7
        task:
          handler: flaky_echo
          params: {failure_rate: 0.4, seed: 9}
          retry: {max_attempts: 5, initial_delay_seconds: 0.02, max_delay_seconds: 0.05}
        next: all
      all: {type: fan_in, next: end}
      end: {type: end, depends_on: {all_of: [all], any_of: [never, after]}}
    """

# A dispatched or running node has a task that is live or has an unprocessed result; a live task has its node.
DISPATCHED_WITHOUT_TASK = """
    SELECT n.node_id, n.status, n.attempt, t.status AS task_status
      FROM dagapp.dag_node_states n
      LEFT JOIN dagapp.dag_tasks t
        ON t.job_id = n.job_id AND t.node_id = n.node_id AND t.attempt = n.attempt
      LEFT JOIN dagapp.dag_task_results r
        ON r.job_id = n.job_id AND r.node_id = n.node_id AND r.attempt = n.attempt AND NOT r.processed
     WHERE (n.status IN ('dispatched', 'running'))
           IS DISTINCT FROM (coalesce(t.status IN ('queued', 'running'), false) OR r.job_id IS NOT NULL)
    """
TASK_WITHOUT_NODE = """
    SELECT t.task_id, t.status, n.status AS node_status, n.attempt
      FROM dagapp.dag_tasks t
      LEFT JOIN dagapp.dag_node_states n
        ON n.job_id = t.job_id AND n.node_id = t.node_id AND n.attempt = t.attempt
       AND n.status IN ('dispatched', 'running')
     WHERE t.status IN ('queued', 'running') AND n.job_id IS NULL
    """


@pytest.mark.requirement("E3")
async def test_a_node_is_dispatched_if_and_only_if_its_task_exists_at_every_moment(database):
    async with engine(database, orchestrators=2, workers=2) as running:
        job_ids = [await running.submit(workflow(MIXED)) for _ in range(5)]
        polls = 0
        while await running.rows("SELECT 1 FROM dagapp.dag_jobs WHERE status IN ('pending', 'running')"):
            assert await running.rows(DISPATCHED_WITHOUT_TASK) == []
            assert await running.rows(TASK_WITHOUT_NODE) == []
            polls += 1
            await asyncio.sleep(0.003)
        jobs = [await running.wait(job_id) for job_id in job_ids]

    assert {job["status"] for job in jobs} == {"completed"}
    assert polls > 10


AUDIT = """
    CREATE TABLE moves (kind text, job_id uuid, node_id text, was text, now text, xid text);
    CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO moves VALUES (TG_TABLE_NAME, NEW.job_id, to_jsonb(NEW) ->> 'node_id',
                                  CASE TG_OP WHEN 'UPDATE' THEN OLD.status END, NEW.status, pg_current_xact_id()::text);
        RETURN NULL;
    END $$;
    CREATE TRIGGER a AFTER UPDATE ON dagapp.dag_node_states FOR EACH ROW WHEN (OLD.status <> NEW.status)
        EXECUTE FUNCTION note_move();
    CREATE TRIGGER b AFTER UPDATE ON dagapp.dag_jobs FOR EACH ROW WHEN (OLD.status <> NEW.status)
        EXECUTE FUNCTION note_move();
    CREATE TRIGGER c AFTER INSERT ON dagapp.dag_node_states FOR EACH ROW WHEN (NEW.status <> 'pending')
        EXECUTE FUNCTION note_move();
    CREATE TRIGGER d AFTER INSERT ON dagapp.dag_jobs FOR EACH ROW EXECUTE FUNCTION note_move();
    """
MOVES_WITHOUT_EVENT = """
    SELECT m.*
      FROM moves m
     WHERE NOT EXISTS (SELECT 1
                         FROM dagapp.dag_job_events e
                        WHERE e.job_id = m.job_id AND e.node_id IS NOT DISTINCT FROM m.node_id
                          AND e.event_status = m.now AND e.xmin::text = m.xid)
    """


@pytest.mark.requirement("E4")
async def test_every_transition_writes_its_event_in_the_same_transaction(database):
    async with engine(database) as running:
        await running.rows(AUDIT)
        jobs = [await running.run(workflow(MIXED)), await running.run(_nodes(FAILING.replace("gate", "echo")))]
        moves_without_event = await running.rows(MOVES_WITHOUT_EVENT)
        moves = await running.value("SELECT count(*) FROM moves")
        by_job = {job["job_id"]: await running.events(job["job_id"]) for job in jobs}

    assert [job["status"] for job in jobs] == ["completed", "failed"]
    assert moves > 100
    assert moves_without_event == []
    for job in jobs:
        events = by_job[job["job_id"]]
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        assert job["last_sequence"] == len(events)
        assert all(event["created_at"] >= job["created_at"] for event in events)
        assert all(event["event_status"] for event in events)


@pytest.mark.requirement("E4")
async def test_the_events_of_a_node_are_in_order(database):
    definition = _nodes("""
        start: {type: start, next: work}
        work: {handler: flaky_echo, params: {failure_rate: 1, seed: 2}, next: end,
        retry: {max_attempts: 4, backoff: fixed, initial_delay_seconds: 0.01}}
        """)

    async with engine(database) as running:
        job = await running.run(definition)
        events = await running.events(job["job_id"])

    story = [(e["event_type"], e["attempt"]) for e in events if e["node_id"] == "work"]
    attempt = [("node_dispatched", 1), ("node_started", 1), ("node_failed", 1), ("node_retried", 1)]
    expected = [("node_ready", None)]
    expected += [(kind, number) for number in range(1, 5) for kind, _ in attempt]
    expected += [("node_dispatched", 5), ("node_started", 5), ("node_completed", 5)]
    assert story == expected
    failures = [e["event_data"]["error"] for e in events if e["event_type"] == "node_failed"]
    assert all(error["blame"] == "handler" and "flaky" in error["message"] for error in failures)
    assert next(e for e in events if e["event_type"] == "node_started")["event_data"]["worker_id"]


# Results


@pytest.mark.requirement("E7")
async def test_a_result_for_an_older_attempt_is_recorded_and_ignored(database):
    async with engine(database, workers=0) as running:
        job_id = await running.submit("echo_test", message="hi")
        slow, first = await _claim(running, "echo", lease_seconds=0.05)
        quick, second = await _claim(running, "echo")
        late = await running.ledger.exchange(slow, [_report(first, "late")], Demand(()), lease_seconds=30)
        assert (await running.nodes(job_id))["echo"]["attempt"] == 2
        done = await running.ledger.exchange(
            quick, [_report(second, {"echoed_params": 1})], Demand(()), lease_seconds=30
        )
        job, nodes = await running.wait(job_id), await running.nodes(job_id)
        results = await running.rows("SELECT * FROM dagapp.dag_task_results WHERE job_id = %s ORDER BY attempt", job_id)

    assert late.late == (first.task_id,)
    assert (done.late, done.accepted) == ((), 1)
    assert job["status"] == "completed"
    assert nodes["echo"]["output"] == {"echoed_params": 1}
    assert [(r["attempt"], r["output"], r["accepted"], r["processed"]) for r in results] == [
        (1, "late", False, True),
        (2, {"echoed_params": 1}, True, True),
    ]


@pytest.mark.requirement("E7")
async def test_a_result_for_a_finished_job_is_recorded_and_ignored(database):
    async with engine(database, workers=0) as running:
        job_id = await running.submit("echo_test")
        slow, first = await _claim(running, "echo", lease_seconds=0.05)
        await running.start_worker()
        job = await running.wait(job_id)
        late = await running.ledger.exchange(slow, [_report(first, "late")], Demand(()), lease_seconds=30)
        again = await running.job(job_id)

    assert late.late == (first.task_id,)
    assert again == job


@pytest.mark.requirement("E7")
async def test_a_report_that_is_repeated_after_a_lost_response_counts_once(database):
    async with engine(database, workers=0) as running:
        job_id = await running.submit("echo_test")
        worker, task = await _claim(running, "echo")
        responses = [
            await running.ledger.exchange(worker, [_report(task, {"echoed_params": n})], Demand(()), lease_seconds=30)
            for n in range(2)
        ]
        job, nodes = await running.wait(job_id), await running.nodes(job_id)

    assert [(response.accepted, response.late) for response in responses] == [(1, ()), (1, ())]
    assert job["status"] == "completed"
    assert nodes["echo"]["output"] == {"echoed_params": 0}


# Notifications and polling


RARE_POLLS = {"orchestrator_poll_interval": 30.0, "worker_poll_interval": 30.0}


@pytest.mark.alone
@pytest.mark.requirement("E8")
@pytest.mark.parametrize("workflow_id", ["hello_world", "retry_test", "fan_out_test"])
async def test_notifications_alone_advance_a_job_through_every_step(database, workflow_id):
    async with engine(database, **RARE_POLLS) as running:
        await running.run("echo_test", timeout=90)  # after this job, all listeners are connected
        job = await running.run(workflow_id, timeout=90)

    assert job["status"] == "completed"
    assert (job["completed_at"] - job["created_at"]).total_seconds() < 10  # polls are 30 s apart


@pytest.mark.requirement("E8")
async def test_without_notifications_polling_completes_the_job(database):
    async with engine(database, has_notifiers=False) as running:
        job = await running.run("hello_world")

    assert job["status"] == "completed"


@pytest.mark.requirement("E8")
async def test_a_listener_that_loses_its_connection_reconnects_and_misses_nothing(database):
    definition = _nodes("start: {type: start, next: wait}\nwait: {handler: gate, next: end}")

    async with engine(database, **RARE_POLLS) as running:
        await running.run("echo_test", timeout=60)
        job_id = await running.submit(definition)
        await _wait_until_running(running, job_id, "wait")
        cut = await running.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name IN ('dagmaster-listen', 'dagmaster-notify')"
        )
        open_gate(job_id)
        job = await running.wait(job_id, timeout=25)

    assert len(cut) >= 3
    assert job["status"] == "completed"


# Timeouts and leases


@pytest.mark.requirement("E10")
async def test_a_task_that_exceeds_its_timeout_fails_and_is_retried(database):
    definition = _nodes("""
        start: {type: start, next: slow}
        slow: {handler: sleep, params: {seconds: 30}, timeout_seconds: 0.15, next: end,
        retry: {max_attempts: 1, backoff: fixed, initial_delay_seconds: 0.01}}
        """)

    async with engine(database) as running:
        job = await running.run(definition)
        nodes, tasks = await running.nodes(job["job_id"]), await running.tasks(job["job_id"])

    assert job["status"] == "failed"
    assert nodes["slow"]["error"]["code"] == "handler.timed-out"
    assert (nodes["slow"]["attempt"], nodes["slow"]["retry_count"]) == (2, 1)
    spans = [(task["finished_at"] - task["started_at"]).total_seconds() for task in tasks]
    assert all(0.15 <= span < 1 for span in spans)


@pytest.mark.requirement("E10")
async def test_children_have_the_timeout_of_the_task_of_their_fan_out(database):
    definition = _nodes("""
        start: {type: start, next: each}
        each: {type: fan_out, source: [0, 30], next: end, task: {handler: sleep, params: {seconds: "{{ item }}"},
        timeout_seconds: 0.2, retry: {max_attempts: 0}}}
        """)

    async with engine(database) as running:
        job = await running.run(definition)
        nodes = await running.nodes(job["job_id"])

    assert job["status"] == "failed"
    assert nodes["each__0"]["status"] == "completed"
    assert nodes["each__1"]["error"]["code"] == "handler.timed-out"


@pytest.mark.requirement("E10")
async def test_a_task_that_its_worker_does_not_end_is_failed_by_the_orchestrator(database, monkeypatch):
    monkeypatch.setattr(orchestrator, "OVERRUN_GRACE_SECONDS", 0.1)
    definition = _nodes("""
        start: {type: start, next: slow}
        slow: {handler: echo, timeout_seconds: 0.1, next: end,
        retry: {max_attempts: 1, backoff: fixed, initial_delay_seconds: 0.01}}
        """)

    async with engine(database, workers=0) as running:
        job_id = await running.submit(definition)
        _, first = await _claim(running, "echo")
        await running.start_worker()
        job, tasks, events = await running.wait(job_id), await running.tasks(job_id), await running.events(job_id)

    assert first.attempt == 1
    assert job["status"] == "completed"
    assert [task["status"] for task in tasks] == ["failed", "succeeded"]
    (error,) = [e["event_data"]["error"] for e in events if e["event_type"] == "node_failed"]
    assert (error["code"], error["message"]) == ("task.overran", "the task ran longer than its timeout of 0.1 s")


@pytest.mark.requirement("E10")
async def test_waiting_in_a_queue_has_its_own_timeout(database):
    definition = _nodes("""
        start: {type: start, next: waiting}
        waiting: {handler: echo, queue_timeout_seconds: 0.2, next: end,
        retry: {max_attempts: 1, backoff: fixed, initial_delay_seconds: 0.01}}
        """)

    async with engine(database, workers=0) as running:
        job = await running.run(definition)
        nodes, tasks = await running.nodes(job["job_id"]), await running.tasks(job["job_id"])

    assert job["status"] == "failed"
    assert [task["status"] for task in tasks] == ["cancelled", "cancelled"]
    assert "waited longer than 0.2 s in its queue" in nodes["waiting"]["error_message"]


@pytest.mark.requirement("E10")
async def test_without_a_queue_timeout_a_task_waits_for_its_worker(database):
    async with engine(database, workers=0) as running:
        job_id = await running.submit("echo_test")
        await asyncio.sleep(1.0)
        (task,) = await running.tasks(job_id)
        await running.start_worker()
        job = await running.wait(job_id)

    assert (task["status"], task["expires_at"]) == ("queued", None)
    assert job["status"] == "completed"


@pytest.mark.requirement("E11")
async def test_a_task_whose_lease_expires_runs_again_and_counts_as_a_loss_not_a_retry(database):
    async with engine(database, workers=0) as running:
        job_id = await running.submit("echo_test")
        await _claim(running, "echo", lease_seconds=0.1)
        await running.start_worker()
        job, nodes, tasks = await running.wait(job_id), await running.nodes(job_id), await running.tasks(job_id)

    assert job["status"] == "completed"
    assert [task["status"] for task in tasks] == ["lost", "succeeded"]
    assert (nodes["echo"]["retry_count"], nodes["echo"]["loss_count"]) == (0, 1)


# Retries


def _failing(blame, retry):
    return _nodes(f"""
        start: {{type: start, next: bad}}
        bad: {{handler: fail, params: {{message: no good, blame: {blame}}}, retry: {retry}, next: end}}
        """)


@pytest.mark.alone
@pytest.mark.requirement("E12")
async def test_a_failed_handler_is_retried_as_often_as_the_workflow_says(database):
    retry = "{max_attempts: 2, backoff: exponential, initial_delay_seconds: 0.2, max_delay_seconds: 0.3}"

    async with engine(database) as running:
        job = await running.run(_failing("handler", retry))
        nodes, tasks = await running.nodes(job["job_id"]), await running.tasks(job["job_id"])
        events = await running.events(job["job_id"])
        results = await running.rows("SELECT * FROM dagapp.dag_task_results WHERE job_id = %s", job["job_id"])

    bad = nodes["bad"]
    assert job["status"] == "failed"
    assert (bad["attempt"], bad["retry_count"], bad["max_retries"], bad["loss_count"]) == (3, 2, 2, 0)
    assert (bad["error_message"], bad["error"]["blame"]) == ("no good", "handler")
    assert [(task["attempt"], task["status"], task["retry_count"]) for task in tasks] == [
        (1, "failed", 0),
        (2, "failed", 1),
        (3, "failed", 2),
    ]
    assert {result["error_message"] for result in results} == {"no good"}
    retries = [e for e in events if e["event_type"] in ("node_retried", "node_dispatched")][1:]
    waits = [
        (after["created_at"] - before["created_at"]).total_seconds()
        for before, after in pairwise(retries)
        if before["event_type"] == "node_retried"
    ]
    planned = [e["event_data"]["wait_seconds"] for e in retries if e["event_type"] == "node_retried"]
    assert 0.1 <= planned[0] <= 0.2
    assert 0.15 <= planned[1] <= 0.3
    assert all(-0.02 <= waited - wait < 0.5 for waited, wait in zip(waits, planned, strict=True))


@pytest.mark.requirement("E12")
async def test_bad_data_is_never_retried(database):
    async with engine(database) as running:
        job = await running.run(_failing("data", "{max_attempts: 5}"))
        nodes = await running.nodes(job["job_id"])

    assert job["status"] == "failed"
    assert (nodes["bad"]["attempt"], nodes["bad"]["retry_count"]) == (1, 0)
    assert nodes["bad"]["error"]["blame"] == "data"


@pytest.mark.requirement("E12")
async def test_invalid_params_of_a_handler_are_blamed_on_the_data(database):
    definition = _nodes("start: {type: start, next: nap}\nnap: {handler: sleep, params: {seconds: long}, next: end}")

    async with engine(database) as running:
        job = await running.run(definition)
        nodes = await running.nodes(job["job_id"])

    assert (nodes["nap"]["attempt"], nodes["nap"]["error"]["blame"]) == (1, "data")
    assert "seconds" in job["error_message"]


@pytest.mark.requirement("E12")
async def test_failures_of_the_environment_are_counted_separately_and_limited(database):
    async with engine(database, max_losses=2) as running:
        job = await running.run(_failing("environment", "{max_attempts: 0}"))
        nodes, tasks = await running.nodes(job["job_id"]), await running.tasks(job["job_id"])

    assert job["status"] == "failed"
    assert (nodes["bad"]["retry_count"], nodes["bad"]["loss_count"]) == (0, 2)
    assert [task["retry_count"] for task in tasks] == [0, 0, 0]
    assert nodes["bad"]["error"]["blame"] == "environment"


# Several orchestrators


@pytest.mark.requirement("E25")
async def test_any_number_of_orchestrators_and_workers_complete_every_job(database):
    async with engine(database, orchestrators=3, workers=3) as running:
        names = ["fan_out_test", "retry_fan_out_test", "conditional_test"] * 10
        job_ids = await running.submit_all([Submission(workflow_id=name) for name in names])
        jobs = [await running.wait(job_id, timeout=60) for job_id in job_ids]

    assert {job["status"] for job in jobs} == {"completed"}


@pytest.mark.requirement("P3")
async def test_jobs_spread_evenly_over_orchestrators(database):
    async with engine(database, orchestrators=3) as running:
        await running.run("echo_test")
        running.add(_nodes("start: {type: start, next: wait}\nwait: {handler: gate, next: end}"))
        job_ids = await running.submit_all([Submission(workflow_id="tested")] * 30)

        async def all_are_owned():
            owned = await running.rows(
                "SELECT owner_id, count(*) AS jobs FROM dagapp.dag_jobs WHERE status = 'running' GROUP BY owner_id"
            )
            return owned if sum(row["jobs"] for row in owned) == 30 else None

        owned = await until(all_are_owned)
        for job_id in job_ids:
            open_gate(job_id)
        for job_id in job_ids:
            await running.wait(job_id)

    assert sorted(row["jobs"] for row in owned) == [10, 10, 10]


# Failures of one job or call


async def _add_bad_job(running):
    """Insert a job whose definition cannot be read."""
    job_id = new_job_id(1_700_000_000_000)
    await running.rows(
        "INSERT INTO dagapp.dag_workflow_definitions (definition_hash, workflow_id, workflow_version, body)"
        """ VALUES ('bad', 'bad', '1', '{"workflow_id": "bad", "nodes": {"start": {"type": "nonsense"}}}')"""
    )
    await running.rows(
        "INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, definition_hash, status, input_params)"
        " VALUES (%s, 'bad', '1', 'bad', 'pending', '{}')",
        job_id,
    )
    return job_id


@pytest.mark.requirement("E27")
async def test_a_bad_job_does_not_stop_the_others_and_fails_with_the_reason(database, monkeypatch):
    monkeypatch.setattr(owned, "ATTEMPTS", 3)
    async with engine(database, verify_history=False) as running:
        bad = await _add_bad_job(running)
        jobs = [await running.run("hello_world") for _ in range(3)]

        async def is_set_aside():
            return running.orchestrators[0].counters.errors

        await until(is_set_aside)
        before = running.orchestrators[0].counters.cycles
        await asyncio.sleep(1.0)
        cycles = running.orchestrators[0].counters.cycles - before
        failed = await running.wait(bad)

    assert {job["status"] for job in jobs} == {"completed"}
    assert (failed["status"], failed["owner_id"]) == ("failed", None)
    assert failed["error_message"].startswith("the job could not be advanced: ValidationError in loading.py, line ")
    assert "nonsense" not in failed["error_message"]  # values of the job are not shown
    assert cycles < 30  # the job is set aside: the loop does not retry it all the time


ONCE = """
    workflow_id: once
    version: 1
    nodes:
      start: {type: start, next: work}
      work: {handler: noop, retry: {max_attempts: 0}, next: end}
      end: {type: end}
"""


@pytest.mark.requirement("E27")
async def test_an_unexpected_exception_fails_the_node_or_the_job(database, monkeypatch):
    monkeypatch.setattr(owned, "ATTEMPTS", 2)

    class BrokenRouter:
        queues = ()

        def routable_handlers(self):
            return []

        def route(self, work):
            raise KeyError("a secret value")

    async with engine(database) as running:
        planner = running.orchestrators[0].planner
        router = planner.router
        planner.router = BrokenRouter()
        job_with_failed_node = await running.run(workflow(ONCE))
        nodes = await running.nodes(job_with_failed_node["job_id"])
        planner.router = router
        monkeypatch.setattr(Draft, "settle_countdowns", lambda _: {}.popitem())
        job_with_failed_decision = await running.run("hello_world")
        monkeypatch.undo()
        healthy = await running.run("hello_world")

    (error,) = [node["error"] for node in nodes.values() if node["status"] == "failed"]
    assert error["code"] == "engine.unexpected"
    assert error["message"].startswith("unexpected KeyError in test_engine.py, line ")
    assert job_with_failed_node["status"] == job_with_failed_decision["status"] == "failed"
    assert job_with_failed_decision["error_message"].startswith(
        "the job could not be advanced: KeyError in test_engine.py, line "
    )
    assert "secret" not in str((error, job_with_failed_node["error_message"]))
    assert healthy["status"] == "completed"


@pytest.mark.requirement("E27")
async def test_lost_connections_do_not_stop_a_job(database):
    async with engine(database, orchestrators=2, workers=2) as running:
        job_id = await running.submit("retry_fan_out_test", count=150)
        cut = 0
        for _ in range(8):
            await asyncio.sleep(0.12)
            cut += len(
                await running.rows(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND application_name LIKE 'dagmaster-%%'"
                )
            )
        job = await running.wait(job_id, timeout=60)

    assert cut > 20
    assert job["status"] == "completed"


@pytest.mark.requirement("E27")
async def test_an_unexpected_database_error_does_not_end_the_loop(database):
    async with engine(database) as running:
        await running.rows("ALTER TABLE dagapp.dag_job_messages RENAME TO renamed")
        job_id = await running.submit("hello_world")
        await asyncio.sleep(1.0)
        await running.rows("ALTER TABLE dagapp.renamed RENAME TO dag_job_messages")
        job = await running.wait(job_id)

    assert job["status"] == "completed"


@pytest.mark.requirement("E27")
async def test_a_heartbeat_that_fails_with_an_unexpected_error_is_repeated(database):
    async with engine(database) as running:
        await running.run("echo_test")
        await running.rows("ALTER TABLE dagapp.orchestrators RENAME TO renamed")
        await asyncio.sleep(0.7)
        await running.rows("ALTER TABLE dagapp.renamed RENAME TO orchestrators")
        broken_until = await running.value("SELECT clock_timestamp()")

        async def beats_again():
            return await running.rows("SELECT 1 FROM dagapp.orchestrators WHERE heartbeat_at > %s", broken_until)

        await until(beats_again, timeout=5)
        job = await running.run("echo_test")

    assert job["status"] == "completed"


# Tables and times


REQUIRED_COLUMNS = {
    "dag_jobs": """
        job_id workflow_id workflow_version definition_hash status input_params owner_id owner_heartbeat_at claim_token
        epoch priority correlation_id submitted_by callback_url idempotency_key asset_id version_ordinal deadline_at
        result_data error_message resume_count version created_at updated_at started_at completed_at
        """,
    "dag_node_states": """
        job_id node_id status task_id parent_node_id fan_out_index input_params output output_ref error_message
        retry_count max_retries not_before progress dispatched_at started_at completed_at version run
        """,
    "dag_tasks": """
        task_id job_id node_id attempt queue handler priority status params params_ref worker_id lease_until
        available_at started_at finished_at progress
        """,
    "dag_task_results": """
        task_id job_id node_id status output error_message metrics worker_id reported_at processed
        """,
    "dag_job_events": """
        event_id job_id node_id event_type event_status event_data checkpoint_name created_at
        """,
    "orchestrators": "owner_id heartbeat_at software_version",
    "workers": "worker_id heartbeat_at software_version queues handlers",
    "dag_checkpoints": "job_id node_id name data",
    "dag_dead_letters": "queue message_id reason body",
    "dag_workflow_definitions": "definition_hash workflow_id body",
}


@pytest.mark.requirement("D2")
async def test_tables_and_columns_are_named_as_specified(database):
    async with engine(database, orchestrators=0, workers=0) as running:
        rows = await running.rows(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'dagapp'"
        )

    existing = {(row["table_name"], row["column_name"]) for row in rows}
    required = {(table, column) for table, columns in REQUIRED_COLUMNS.items() for column in columns.split()}
    assert required - existing == set()


@pytest.mark.requirement("D3")
async def test_all_times_have_a_time_zone_and_come_from_the_server(database):
    async with engine(database) as running:
        job = await running.run("echo_test")
        columns_without_time_zone = await running.rows(
            "SELECT table_name, column_name FROM information_schema.columns"
            " WHERE table_schema = 'dagapp' AND (data_type LIKE 'timestamp%%without%%' OR data_type IN ('date', 'time')"
            "    OR column_name LIKE '%%\\_at' AND data_type <> 'timestamp with time zone')"
        )
        now = await running.value("SELECT clock_timestamp()")

    assert columns_without_time_zone == []
    assert job["created_at"] <= job["started_at"] <= job["completed_at"] <= now
