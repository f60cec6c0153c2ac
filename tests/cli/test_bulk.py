"""`dagmaster jobs bulk`: what it prints and returns for jobs that the preview refuses."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from dagmaster.cli.bulk import change_jobs
from dagmaster.cli.command import State
from dagmaster.errors import InvalidRequest

pytestmark = pytest.mark.requirement("M3")

RUNNING, ENDED, CANCELLED = (f"0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a0{digit}" for digit in (1, 2, 3))
OUTCOMES = {RUNNING: "accepted", ENDED: "refused", CANCELLED: "unchanged"}


class Platform:
    """Responds to the request for many jobs as the API does."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def change_jobs(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        outcomes = [OUTCOMES[job_id] for job_id in request["job_ids"]]
        return {
            "action": request["action"],
            "is_preview": request.get("preview", False),
            "is_complete": True,
            **{outcome: outcomes.count(outcome) for outcome in OUTCOMES.values()},
            "results": [{"job_id": job_id, "outcome": OUTCOMES[job_id]} for job_id in request["job_ids"]],
        }


@pytest.mark.parametrize(
    ("job_ids", "code", "line"),
    [
        ([RUNNING], 0, "1 accepted, 0 unchanged, 0 refused"),
        ([RUNNING, CANCELLED], 0, "1 accepted, 1 unchanged, 0 refused"),
        ([ENDED, RUNNING], 4, "1 accepted, 0 unchanged, 1 refused"),
        ([ENDED], 4, "0 would be accepted, 0 unchanged, 1 refused"),
    ],
)
def test_a_job_that_the_preview_refuses_is_reported_although_it_is_not_sent(
    capsys: pytest.CaptureFixture[str], job_ids: list[str], code: int, line: str
) -> None:
    platform, state = Platform(), State()
    state.__dict__["client"] = SimpleNamespace(change_jobs=platform.change_jobs)

    result = change_jobs(state, {"action": "cancel", "job_ids": job_ids}, is_confirmed=True)

    printed = capsys.readouterr().out
    assert result == code
    assert line in printed
    assert all(str(UUID(job_id)) in printed for job_id in job_ids)
    assert [request["job_ids"] for request in platform.requests[1:]] == [[RUNNING]] * (RUNNING in job_ids)


def test_without_a_terminal_the_confirmation_must_be_given_by_an_option() -> None:
    platform, state = Platform(), State()
    state.__dict__["client"] = SimpleNamespace(change_jobs=platform.change_jobs)

    with pytest.raises(InvalidRequest) as refused:
        change_jobs(state, {"action": "cancel", "job_ids": [RUNNING]}, is_confirmed=False)

    assert refused.value.hint == "add --yes"
    assert [request["preview"] for request in platform.requests] == [True]
