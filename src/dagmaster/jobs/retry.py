"""Whether a failed attempt is retried, and after how long.

There are two limits. Failures of the handler count against the workflow's `retry.max_attempts`. Failures of the
environment (a lost worker, an unreachable service) count against `max_losses`, so that a deployment uses up no retry
and a poison task still stops. Bad data is never retried. The planner drops the retry if the job is failing.
"""

from dataclasses import dataclass
from random import Random

from dagmaster.jobs.states import Blame
from dagmaster.workflows.model import Retry


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """A retry: the node's counters after it was scheduled, and the wait before it."""

    retry_count: int
    loss_count: int
    wait_seconds: float


LOSS_POLICY = Retry(initial_delay_seconds=0.5, max_delay_seconds=30)  # the limit is max_losses, not its max_attempts


def backoff_seconds(policy: Retry, nth: int, random: Random) -> float:
    """The wait before the nth retry (from 1), within the policy's bounds. Jitter spreads it over the upper half."""
    factor = 2.0 ** min(nth - 1, 30) if policy.backoff == "exponential" else 1.0
    wait = min(policy.initial_delay_seconds * factor, policy.max_delay_seconds)
    return wait * random.uniform(0.5, 1.0) if policy.jitter else wait


def after_failure(
    policy: Retry, blame: Blame, *, retry_count: int, loss_count: int, max_losses: int, random: Random
) -> RetrySchedule | None:
    """The schedule of the retry; None if the failure is final."""
    match blame:
        case Blame.DATA:
            return None
        case Blame.ENVIRONMENT:
            if loss_count >= max_losses:
                return None
            return RetrySchedule(retry_count, loss_count + 1, backoff_seconds(LOSS_POLICY, loss_count + 1, random))
        case Blame.HANDLER | Blame.ENGINE:
            if retry_count >= policy.max_attempts:  # retries: the first attempt is not counted
                return None
            return RetrySchedule(retry_count + 1, loss_count, backoff_seconds(policy, retry_count + 1, random))


def after_lost_worker(*, retry_count: int, loss_count: int, max_losses: int, random: Random) -> RetrySchedule | None:
    """The schedule of the retry after the worker of a task was lost; None if the task is given up. After the first loss
    the retry has no delay: waiting for the end of the lease was enough."""
    if loss_count >= max_losses:
        return None
    wait = backoff_seconds(LOSS_POLICY, loss_count, random) if loss_count else 0.0
    return RetrySchedule(retry_count, loss_count + 1, wait)
