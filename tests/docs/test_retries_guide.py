"""The guide "Choose retries and importance": its workflows end as described, its tables agree with the code."""

import re
from random import Random

import pytest

from dagmaster.jobs.retry import LOSS_POLICY, backoff_seconds
from dagmaster.jobs.states import Blame
from dagmaster.settings import Settings
from dagmaster.testing import Kit, virtual_time
from dagmaster.workflows.load import read
from dagmaster.workflows.model import Importance, Retry
from tests.docs.pages import ROOT, blocks_in

PAGE = ROOT / "docs/guides/choose-retries-and-importance.md"
TEXT = PAGE.read_text()
WORKFLOWS = {
    workflow.workflow_id: block.body
    for block in blocks_in(PAGE)
    if block.info == "yaml workflow"
    for workflow in [read(block.body, "guide.yaml", handlers=None, queues=None)]
}


def rows(heading: str) -> list[list[str]]:
    """The rows of the table whose first heading is this, without backticks."""
    table = re.search(rf"^\| {heading} \|.*?\n\n", TEXT.replace("`", ""), re.MULTILINE | re.DOTALL)
    assert table is not None
    lines = table[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_of_blame_is_complete_and_names_the_limits():
    assert [row[0] for row in rows("blame")] == [blame.value for blame in Blame]
    assert f"MAX_LOSSES ({Settings().max_losses})" in rows("blame")[1][3]


@virtual_time
async def job_of(text, **settings):
    async with Kit(workflows=[text], **settings) as kit:
        return await kit.run(read(text, "guide.yaml", handlers=None, queues=None).workflow_id)


@pytest.mark.parametrize("blame", ["data", "environment", "handler"])
def test_the_number_of_attempts_per_blame_is_as_described(blame):
    counted = {row[0]: row[3] for row in rows("blame")}[blame]
    text = WORKFLOWS["retries"].replace("blame: handler", f"blame: {blame}")

    attempts = len(job_of(text).attempts("work"))

    budget = {"nothing": 0, "MAX_LOSSES (5)": 5, "retry.max_attempts of the node": 3}[counted]
    assert attempts == 1 + budget


def test_the_delays_are_as_shown_and_the_shown_policy_is_the_default():
    shown = read(WORKFLOWS["retries"], "guide.yaml", handlers=None, queues=None).nodes["work"].retry
    steady = shown.model_copy(update={"jitter": False})

    waits = [[str(nth), f"{backoff_seconds(steady, nth, Random(1)):g} s"] for nth in range(1, shown.max_attempts + 1)]

    assert shown == Retry()
    assert rows("retry") == waits
    assert (LOSS_POLICY.initial_delay_seconds, LOSS_POLICY.max_delay_seconds) == (0.5, 30)
    assert "starts at 0.5 s and doubles, up to 30 s" in " ".join(TEXT.split())


@pytest.mark.parametrize("row", rows("preview is"), ids=lambda row: row[0])
def test_the_effect_of_a_failure_on_the_job_is_as_described(row):
    importance, job, notify, store = row
    assert row[0] in set(Importance)

    end = job_of(WORKFLOWS["meaning"].replace("importance: important", f"importance: {importance}"))

    end.expect(job, nodes={"preview": "failed", "notify": notify, "store": store})


def test_a_fan_out_tolerates_as_many_failures_as_described():
    tolerated = job_of(WORKFLOWS["tolerant"])
    strict = job_of(WORKFLOWS["tolerant"].replace("tolerate: 10%", "tolerate: 0"))
    important = WORKFLOWS["tolerant"].replace("tolerate: 10%", "importance: important")
    alone, together = job_of(important), job_of(important.replace("fan_in,", "fan_in, importance: important,"))

    tolerated.expect("completed")
    assert (tolerated.output("gather")["count"], len(tolerated.output("gather")["failed"])) == (9, 1)
    strict.expect("failed")
    assert (alone.status, together.status) == ("failed", "partial_success")


def test_every_row_of_advice_names_a_valid_importance():
    advised = {row[2] for row in rows("the node")} - {"", "depends on its purpose"}

    assert advised == set(Importance)
