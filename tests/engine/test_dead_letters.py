"""Messages that cannot be processed are stored with the reason, and replayed on request."""

import pytest

from dagmaster.database.notify.notifier import JOBS
from tests.engine.harness import engine, until, workflow

pytestmark = pytest.mark.requirement("Q4")

POISON = """
    workflow_id: poison
    nodes:
      start: {type: start, next: work}
      work: {handler: crash, params: {code: 3}, next: end}
      end: {type: end}
"""


async def test_a_task_that_kills_its_process_repeatedly_becomes_a_dead_letter(database):
    async with engine(database, max_losses=2) as running:
        job = await running.run(workflow(POISON))
        letters = await running.rows("SELECT * FROM dagapp.dag_dead_letters")
        tasks = await running.tasks(job["job_id"])

        assert job["status"] == "failed"
        assert len(tasks) == 3
        assert [(x["reason"], x["message_id"]) for x in letters] == [("PoisonTask", tasks[-1]["task_id"])]
        assert letters[0]["body"]["params"] == {"code": 3}
        assert "exit" in letters[0]["description"]


async def test_a_refused_submission_is_replayed_once_its_workflow_exists(database):
    async with engine(database, unknown_handler_timeout_sec=0) as running:
        await running.ledger.enqueue_message("m1", "dag-jobs", {"workflow_id": "later"})
        running.notifier.notify(JOBS)
        while not (letters := await running.rows("SELECT * FROM dagapp.dag_dead_letters")):
            pass
        running.add(
            workflow(POISON.replace("poison", "later").replace("crash", "noop").replace(", params: {code: 3}", ""))
        )

        replayed = await running.ledger.replay_dead_letter(letters[0]["dead_letter_id"], "dag-jobs")
        again = await running.ledger.replay_dead_letter(letters[0]["dead_letter_id"], "dag-jobs")
        running.notifier.notify(JOBS)
        while not (jobs := await running.rows("SELECT * FROM dagapp.dag_jobs WHERE message_id = 'm1'")):
            pass
        job = await running.wait(jobs[0]["job_id"])

        assert letters[0]["reason"] == "WorkflowNotFound"
        assert (replayed, again) == (True, False)
        assert job["status"] == "completed"
        assert await running.rows("SELECT 1 FROM dagapp.dag_dead_letters") == []


@pytest.mark.requirement("S3", "X3")
async def test_a_message_with_a_signed_url_is_refused_and_kept_without_its_signature(database):
    url = "https://acct.blob.core.windows.net/c/b.tif?sv=1&sig=canary"
    async with engine(database, workers=0, unknown_handler_timeout_sec=0) as running:
        for number, workflow_id in enumerate(("echo_test", "unknown")):
            body = {"workflow_id": workflow_id, "inputs": {"message": url}}
            await running.ledger.enqueue_message(f"m{number}", "dag-jobs", body)
        running.notifier.notify(JOBS)
        query = "SELECT * FROM dagapp.dag_dead_letters ORDER BY message_id"

        async def both_letters():
            letters = await running.rows(query)
            return letters if len(letters) == 2 else None

        letters = await until(both_letters)

        assert [letter["reason"] for letter in letters] == ["InvalidSubmission", "WorkflowNotFound"]
        assert "signature" in letters[0]["description"]
        assert letters[0]["body"]["inputs"]["message"].endswith("?sv=1&sig=***")
        assert "canary" not in str(letters)
        assert await running.rows("SELECT 1 FROM dagapp.dag_jobs") == []
