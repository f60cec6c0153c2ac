"""`dagmaster jobs logs`: what handlers logged, attempt by attempt."""

import time
from functools import partial

from dagmaster.cli.command import State
from dagmaster.cli.follow import detached
from dagmaster.client.feed import Reconnection
from dagmaster.client.log_follower import LogFollower
from dagmaster.client.models.base import Json, read
from dagmaster.client.models.nodes import JobLogLine

_POLL_SECONDS = 1.0


def text_of(response: Json) -> str:
    line = read(JobLogLine, response)
    at = line.at.strftime("%H:%M:%S.%f")[:-3]
    return f"{at}  {line.node_id} attempt {line.attempt}  {line.level}: {line.text}"


def follow_logs(state: State, job_id: str, node: str | None, attempt: int | None) -> int:
    """Print all lines, also new ones, until the job has ended; returns the exit code."""
    follower = LogFollower(state.client, job_id, node, attempt, partial(_print, state))
    reconnection = Reconnection(state.note, job_id)
    try:
        while not reconnection.call(follower.poll):
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        return detached(state, job_id)
    return 0


def _print(state: State, response: Json) -> None:
    state.print_result(response, lambda: state.say(text_of(response)), line=True)
