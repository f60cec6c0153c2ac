"""`dagmaster jobs cancel`, `jobs resume` and `jobs retry`: send the request, and show its progress."""

import shlex
import time
from collections.abc import Mapping, Sequence

from dagmaster.cli.command import State
from dagmaster.cli.follow import detached, follow
from dagmaster.client.models.base import Json, read
from dagmaster.client.models.jobs import CancelProgress, Resumed, StoppingTask
from dagmaster.errors import Conflict
from dagmaster.quantities import counted

_POLL_SECONDS = 1.0
_CONFLICT = 4


def cancel(state: State, job_id: str, request: Json, wait_seconds: float) -> int:
    """Cancel a job and wait for its end for a while; returns the exit code."""
    try:
        response = _cancelled(state, job_id, request, wait_seconds)
    except KeyboardInterrupt:
        return detached(state, job_id, state_text="the job will still be cancelled")
    state.print_result(response, lambda: _print_end(state, read(CancelProgress, response)))
    return 0 if response["status"] == "cancelled" or not response["is_over"] else _CONFLICT


def _cancelled(state: State, job_id: str, request: Json, wait_seconds: float) -> Json:
    until = time.monotonic() + wait_seconds
    progress = _PrintedProgress(state)
    response = state.client.cancel(job_id, request, min(_POLL_SECONDS, wait_seconds))
    progress.show(read(CancelProgress, response))
    while not response["is_over"] and (remaining_seconds := until - time.monotonic()) > 0:
        try:
            response = state.client.cancel(job_id, {}, min(_POLL_SECONDS, remaining_seconds))
        except Conflict as error:
            if error.code != "job.ended":
                raise
            # The job ended between two polls.
            response = {**response, "status": state.client.job_summary(job_id)["status"], "is_over": True}
        progress.show(read(CancelProgress, response))
    return response


class _PrintedProgress:
    """Prints each step of a task once: its worker has asked the handler to stop, the task has ended."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._printed: set[str] = set()

    def show(self, response: CancelProgress) -> None:
        if self._state.json:
            return
        for task in response.tasks:
            for line in _steps(task):
                if line not in self._printed:
                    self._printed.add(line)
                    self._state.say(line)


def _steps(task: StoppingTask) -> list[str]:
    name = f"{task.node_id}, attempt {task.attempt}"
    lines = []
    if task.acknowledged_at is not None:
        after = (task.acknowledged_at - task.requested_at).total_seconds()
        lines.append(f"{name}: worker {task.worker_id} asked its handler to stop, {after:.1f} s after the request")
    if task.finished_at is not None:
        after = (task.finished_at - task.requested_at).total_seconds()
        lines.append(f"{name}: ended {after:.1f} s after the request")
    return lines


def _print_end(state: State, response: CancelProgress) -> None:
    if not response.is_over:
        running = sum(task.finished_at is None for task in response.tasks)
        state.say(
            f"job {response.job_id} is being cancelled"
            + (f": {counted(running, 'task')} still running" if running else "")
        )
        state.note(f"watch it with: dagmaster jobs watch {response.job_id}")
    elif response.status == "cancelled":
        state.say(f"job {response.job_id} is cancelled")
        state.note(f"resume it with: dagmaster jobs resume {response.job_id}")
    else:
        state.say(f"job {response.job_id} ended before it could be cancelled: {response.status.replace('_', ' ')}")


def resume(state: State, job_id: str, request: Json, *, is_dry_run: bool, wait: bool, watch: bool) -> int:
    """Resume a job, or show what would run; returns the exit code."""
    response = state.client.resume(job_id, request, is_dry_run=is_dry_run)
    return _print_and_follow(state, response, f"dagmaster jobs resume {job_id}", wait=wait, watch=watch)


def retry(
    state: State, job_id: str, part: Mapping[str, str], request: Json, *, is_dry_run: bool, wait: bool, watch: bool
) -> int:
    """Run a part of a job again, or show what would run; returns the exit code."""
    response = state.client.retry(job_id, {**part, **request}, is_dry_run=is_dry_run)
    options = " ".join(f"--{name.replace('_', '-')} {shlex.quote(value)}" for name, value in part.items())
    return _print_and_follow(state, response, f"dagmaster jobs retry {job_id} {options}", wait=wait, watch=watch)


def _print_and_follow(state: State, response: Json, command: str, *, wait: bool, watch: bool) -> int:
    is_waiting = wait or watch
    if state.json and not is_waiting:
        state.emit(response)
    elif not state.json:
        _print_resumed(state, read(Resumed, response), command, is_waiting)
    return follow(state, response["job_id"], live=watch) if is_waiting else 0


def _print_resumed(state: State, response: Resumed, command: str, is_waiting: bool) -> None:
    """Print what runs again: to standard output, unless the result will be printed there."""
    is_dry = response.status == "dry_run"
    write = state.note if is_waiting else state.say
    write(f"job {response.job_id} would run again:" if is_dry else f"job {response.job_id} runs again:")
    for line in rerun_lines(response.nodes, response.children):
        write(f"  {line}")
    if is_dry:
        state.note(f"run it with: {command}")
    elif not is_waiting:
        state.note(f"watch it with: dagmaster jobs watch {response.job_id}")


def rerun_lines(nodes: Sequence[str], children: Mapping[str, int]) -> list[str]:
    """A line for each fan_out whose children run, then one for each node."""
    fan_out_lines = [f"{counted(count, 'child', 'children')} of {fan_out}" for fan_out, count in children.items()]
    return [*fan_out_lines, *nodes]
