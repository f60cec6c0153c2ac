"""`dagmaster jobs cancel`, `jobs resume` and `jobs retry`: ask for it, and tell how far it has come."""

import shlex
import time
from collections.abc import Mapping

from dagmaster.cli.command import State
from dagmaster.cli.follow import detached, follow
from dagmaster.cli.printable import counted
from dagmaster.client.answers import Cancelling, Json, Resumed, StoppingTask, read
from dagmaster.errors import Conflict

_LOOK_SECONDS = 1.0
_CONFLICT = 4


def cancel(state: State, job_id: str, wish: Json, wait_seconds: float) -> int:
    """Ask for a job's end and stay for a while; the answer is the exit code."""
    try:
        answer = _cancelled(state, job_id, wish, wait_seconds)
    except KeyboardInterrupt:
        return detached(state, job_id, what="the job is cancelled all the same")
    if state.json:
        state.emit(answer)
    else:
        _tell_end(state, read(Cancelling, answer))
    return 0 if answer["status"] == "cancelled" or not answer["is_over"] else _CONFLICT


def _cancelled(state: State, job_id: str, wish: Json, wait_seconds: float) -> Json:
    until = time.monotonic() + wait_seconds
    told = _Told(state)
    answer = state.client.cancel(job_id, wish, min(_LOOK_SECONDS, wait_seconds))
    told.show(read(Cancelling, answer))
    while not answer["is_over"] and (left := until - time.monotonic()) > 0:
        try:
            answer = state.client.cancel(job_id, {}, min(_LOOK_SECONDS, left))
        except Conflict as error:
            if error.code != "job.ended":
                raise
            # It ended between two looks.
            answer = {**answer, "status": state.client.job_line(job_id)["status"], "is_over": True}
        told.show(read(Cancelling, answer))
    return answer


class _Told:
    """Says each thing about a task once: its worker was told, the task ended."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._lines: set[str] = set()

    def show(self, answer: Cancelling) -> None:
        if self._state.json:
            return
        for task in answer.tasks:
            for line in _steps(task):
                if line not in self._lines:
                    self._lines.add(line)
                    self._state.say(line)


def _steps(task: StoppingTask) -> list[str]:
    name = f"{task.node_id}, attempt {task.attempt}"
    lines = []
    if task.acknowledged_at is not None:
        after = (task.acknowledged_at - task.requested_at).total_seconds()
        lines.append(f"{name}: worker {task.worker_id} told its handler to stop after {after:.1f} s")
    if task.finished_at is not None:
        after = (task.finished_at - task.requested_at).total_seconds()
        lines.append(f"{name}: ended after {after:.1f} s")
    return lines


def _tell_end(state: State, answer: Cancelling) -> None:
    if not answer.is_over:
        left = [task for task in answer.tasks if task.finished_at is None]
        still = f": {counted(len(left), 'task')} of it still to end" if left else ""
        state.say(f"job {answer.job_id} is being cancelled{still}")
        state.note(f"watch it with: dagmaster jobs watch {answer.job_id}")
    elif answer.status == "cancelled":
        state.say(f"job {answer.job_id} is cancelled")
        state.note(f"let it go on with: dagmaster jobs resume {answer.job_id}")
    else:
        state.say(f"job {answer.job_id} ended before it could be cancelled: {answer.status.replace('_', ' ')}")


def resume(state: State, job_id: str, wish: Json, *, is_dry_run: bool, wait: bool, watch: bool) -> int:
    """Let a job go on, or say what would run; the answer is the exit code."""
    answer = state.client.resume(job_id, wish, is_dry_run=is_dry_run)
    return _told_and_followed(state, answer, f"dagmaster jobs resume {job_id}", wait=wait, watch=watch)


def retry(
    state: State, job_id: str, part: Mapping[str, str], wish: Json, *, is_dry_run: bool, wait: bool, watch: bool
) -> int:
    """Run a part of a job once more, or say what would run; the answer is the exit code."""
    answer = state.client.retry(job_id, {**part, **wish}, is_dry_run=is_dry_run)
    options = " ".join(f"--{name.replace('_', '-')} {shlex.quote(value)}" for name, value in part.items())
    return _told_and_followed(state, answer, f"dagmaster jobs retry {job_id} {options}", wait=wait, watch=watch)


def _told_and_followed(state: State, answer: Json, command: str, *, wait: bool, watch: bool) -> int:
    stays = wait or watch
    if state.json and not stays:
        state.emit(answer)
    elif not state.json:
        _tell_resumed(state, read(Resumed, answer), command, stays)
    return follow(state, answer["job_id"], live=watch) if stays else 0


def _tell_resumed(state: State, answer: Resumed, command: str, stays: bool) -> None:
    """What runs is the answer, unless a result is to follow on standard output."""
    is_dry = answer.status == "dry_run"
    tell = state.note if stays else state.say
    tell(f"job {answer.job_id} would run again:" if is_dry else f"job {answer.job_id} goes on with:")
    for line in again_lines(answer.nodes, answer.children):
        tell(f"  {line}")
    if is_dry:
        state.note(f"let it go on with: {command}")
    elif not stays:
        state.note(f"watch it with: dagmaster jobs watch {answer.job_id}")


def again_lines(nodes: list[str], children: Mapping[str, int]) -> list[str]:
    """A line for each fan_out whose children run, then one for each node."""
    some = [f"{counted(count, 'child', 'children')} of {fan_out}" for fan_out, count in children.items()]
    return [*some, *nodes]
