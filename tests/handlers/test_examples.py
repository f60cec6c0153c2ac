"""The handlers for tests and demonstrations that are part of the package."""

from typing import Any

import pytest

from dagmaster.handlers import calling
from dagmaster.handlers.registry import installed
from dagmaster.jobs.fan import ChildResult
from dagmaster.testing import run_handler


def call(name: str, /, **params: Any) -> Any:
    return run_handler(name, params).output


@pytest.mark.requirement("H3")
def test_every_installed_handler_can_be_imported() -> None:
    for registration in installed().values():
        assert calling.resolve(registration).function.__name__ == registration.target.split(":")[1]


@pytest.mark.requirement("H3")
def test_echo_hello_size_chunk_and_list_return_what_is_documented() -> None:
    assert call("echo", a=[1]) == {"echoed_params": {"a": [1]}}
    assert call("hello_world") == {"message": "Hello, World!"}
    assert call("hello_world", name="Ada") == {"message": "Hello, Ada!"}
    assert call("size_check", size_mb=150) == {"size_mb": 150.0, "is_large": True, "category": "large"}
    assert call("size_check", size_mb=5, threshold_mb=5)["category"] == "small"
    assert call("chunk_processor", index=3, value=21) == {"index": 3, "value": 42}
    assert call("chunk_processor", items=[1, 2, 3.5]) == {"count": 3, "total": 6.5}
    assert call("make_list", count=3, start=5) == {"items": [5, 6, 7], "count": 3}
    assert call("noop", anything=1) is None


@pytest.mark.requirement("H3")
@pytest.mark.parametrize("blame", ["data", "environment", "handler"])
def test_fail_raises_the_error_of_the_given_blame(blame: str) -> None:
    trial = run_handler("fail", {"message": "no good", "blame": blame})

    assert trial.blame == blame
    assert trial.error is not None
    assert trial.error["message"] == "no good"


def flaky(attempt: int, node: str = "n", rate: float = 0.5) -> bool:
    trial = run_handler("flaky_echo", {"failure_rate": rate, "seed": 7}, node_id=node, attempt=attempt)
    assert trial.error is None or trial.error["code"] == "handler.flaky"
    return trial.error is None


@pytest.mark.requirement("H3")
def test_flaky_echo_fails_the_same_attempts_for_the_same_seed() -> None:
    first = [flaky(1, node=f"n__{i}") for i in range(120)]
    again = [flaky(1, node=f"n__{i}") for i in range(40)]

    assert first[:40] == again
    assert 40 < sum(first) < 80


@pytest.mark.requirement("H3")
def test_flaky_echo_with_a_seed_succeeds_after_at_most_four_retries() -> None:
    assert not flaky(4, rate=1.0)
    assert flaky(5, rate=1.0)


@pytest.mark.requirement("H3")
def test_flaky_echo_without_a_seed_echoes_all_params() -> None:
    assert call("flaky_echo", failure_rate=0, index=4) == {
        "echoed_params": {"failure_rate": 0.0, "index": 4},
        "attempt": 1,
    }


@pytest.mark.requirement("E14")
@pytest.mark.parametrize(("flag", "status"), [("cancelled_after", "cancelled"), ("shutting_down_after", "returned")])
def test_sleep_ends_soon_after_a_request_to_stop(flag: str, status: str) -> None:
    trial = run_handler("sleep", {"seconds": 60}, **{flag: 10})  # type: ignore[arg-type]

    assert trial.status == status
    assert trial.metrics["seconds"] == pytest.approx(1.0)


@pytest.mark.requirement("H3")
def test_sleep_sleeps_for_the_given_seconds() -> None:
    assert run_handler("sleep", {"seconds": 60}).metrics["seconds"] == pytest.approx(60.0)


@pytest.mark.requirement("W8")
def test_collect_results_sums_completed_results_only() -> None:
    results = [{"value": 2}, ChildResult(1, "f__1", "failed", None, "boom"), 0.5]

    assert run_handler("collect_results", results=results).output == {"count": 2, "total": 2.5}
