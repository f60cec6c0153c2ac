from rivers.handlers import fetch, measure

from dagmaster.errors import HandlerFailed
from dagmaster.testing import Kit, run_handler, virtual_time

NORTHWARDS = {"river": "test", "bends": [(0, 0), (0, 1), (0, 2)]}


def test_a_known_river_has_a_course():
    assert len(run_handler(fetch, {"river": "Po"}).output["bends"]) == 6


def test_an_unknown_river_is_not_retried():
    trial = run_handler(fetch, {"river": "Styx"})

    assert trial.error["code"] == "rivers.unknown"
    assert trial.blame == "data"


def test_a_degree_of_latitude_is_111_km():
    trial = run_handler(measure, NORTHWARDS)

    assert trial.output == {"river": "test", "kilometres": 222.4}
    assert [report["fraction"] for report in trial.progress] == [0.5, 1.0]


def test_measuring_continues_where_an_earlier_attempt_stopped():
    trial = run_handler(measure, NORTHWARDS, attempt=2, checkpoints={"stretches": [1, 1000.0]})

    assert trial.output["kilometres"] == 1111.2
    assert len(trial.progress) == 1


def test_a_worker_that_stops_gives_its_task_back():
    trial = run_handler(measure, NORTHWARDS, shutting_down_after=1)

    assert trial.status == "returned"
    assert list(trial.checkpoints) == ["stretches"]


@virtual_time
async def test_the_workflow_survives_failures_and_a_lost_worker():
    async with Kit() as kit:
        kit.fail("fetch", HandlerFailed("the service returned an invalid response"))
        kit.lose_worker("measure")
        job = await kit.run("river_length", {"river": "Po"})

    job.expect("completed", result={"kilometres": 434.7}, attempts={"fetch": 2, "measure": 2})
    assert job.seconds > 1800
