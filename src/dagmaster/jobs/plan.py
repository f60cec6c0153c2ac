"""Decide what a job does next.

`Planner.decide` takes a job's view and the updates of its tasks. It returns the changes to write, and the view that
holds once they are written. It reads no clock and no database: the orchestrator provides the facts and writes the
changes.

    updates ──▶ fold      (results, losses, waits that are over)
            ──▶ settle    (nodes whose dependencies have ended start, are skipped, or wait)
            ──▶ conclude  (everything has ended: the job's outcome and result)

Outputs that a template needs and that are not loaded are in `Plan.missing_outputs`; the caller loads them and decides
again. Templates that need too long are in `Plan.slow`; the caller renders them in another thread and decides again.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, assert_never

from dagmaster.errors import DagmasterError, InvalidRequest, unexpected
from dagmaster.jobs import fan
from dagmaster.jobs.changes import Changes, NewChild, NewTask, PoisonedTask
from dagmaster.jobs.draft import Draft
from dagmaster.jobs.expansion import Expansion, results_slice
from dagmaster.jobs.job_result import JobResult
from dagmaster.jobs.payload import INLINE_BYTES, LOADABLE_BYTES
from dagmaster.jobs.rendering import Key, RenderLimits, SlowTemplate, TemplateRendering
from dagmaster.jobs.retry import RetrySchedule, after_failure, after_lost_worker
from dagmaster.jobs.routing import DeferredWork, Router, UnknownRoute
from dagmaster.jobs.states import Blame, JobStatus, NodeStatus, SkipReason, Stop
from dagmaster.jobs.task_params import ByteBudget, ParamsWriter
from dagmaster.jobs.updates import (
    Due,
    Expired,
    Failed,
    Idle,
    Lost,
    Overran,
    Returned,
    Started,
    StopRequest,
    Succeeded,
    TaskUpdate,
    Withdrawn,
)
from dagmaster.jobs.view import (
    JobView,
    Readiness,
    exceeds_tolerance,
    fan_out_read_by,
    is_busy,
    is_cut_short,
    is_ended,
    is_failing,
    outcome,
    readiness,
    rerunnable_children,
)
from dagmaster.workflows.model import (
    Aggregation,
    ConditionalNode,
    EndNode,
    FanInNode,
    FanOutNode,
    Importance,
    Retry,
    StartNode,
    TaskNode,
)
from dagmaster.workflows.storable import encode

JOB_FAILED = "job_failed"
_CANCEL_REASONS = {Stop.CANCELLED: "job_cancelled", Stop.DEADLINE: "job_deadline"}
CHILDREN_FAILED = "fan-in.children-failed"
_FINAL = (CHILDREN_FAILED, "template.too-slow")  # a retry would find the same children, or the same values


@dataclass(frozen=True, slots=True)
class Plan:
    changes: Changes
    view: JobView
    missing_outputs: frozenset[str] = frozenset()  # nodes whose outputs must be loaded before the job can continue
    slow: Mapping[Key, SlowTemplate] = field(default_factory=dict)  # templates to render before the job can continue
    is_unfinished: bool = False  # the next transaction can continue at once (the next chunk of a fan_out)
    is_failing: bool = False


@dataclass(slots=True)
class Planner:
    router: Router
    random: Random = field(default_factory=Random)
    max_losses: int = 5
    max_fan_out: int = 100_000
    max_params_bytes: int = LOADABLE_BYTES
    chunk: int = 2000
    clock: Callable[[], float] | None = None  # set if an expansion must not delay other jobs for a long time
    expansion_seconds: float = 0.5
    render_limits: RenderLimits = field(default_factory=RenderLimits)

    def decide(
        self,
        view: JobView,
        updates: Sequence[TaskUpdate],
        *,
        epoch: int,
        sequence: int,
        checks_all_nodes: bool = False,
        stop: StopRequest | None = None,
        budget: ByteBudget | None = None,
        unroutable: Collection[DeferredWork] = (),
        rendered: Mapping[Key, Any] | None = None,
    ) -> Plan:
        """`unroutable` is deferred work that no live process has known for a long time. Its nodes fail.
        `rendered` are the outcomes of templates that were slow in an earlier decision.
        """
        draft = Draft(view, epoch, sequence)
        if stop is not None and view.stopping is None:
            draft.stop(stop)
        decision = _JobDecision(self, draft, budget or ByteBudget(), unroutable, rendered or {})
        return decision.run(updates, checks_all_nodes=checks_all_nodes)


class _JobDecision:
    """One decision about one job."""

    def __init__(
        self,
        planner: Planner,
        draft: Draft,
        budget: ByteBudget,
        unroutable: Collection[DeferredWork],
        rendered: Mapping[Key, Any],
    ) -> None:
        self.planner = planner
        self.draft = draft
        self.budget = budget
        self.unroutable = unroutable
        self.params = ParamsWriter(draft.changes, budget, planner.max_params_bytes)
        self.rendering = TemplateRendering(planner.render_limits, budget, rendered)
        self.result = JobResult(draft, self.params, self.rendering)
        self.slow: dict[Key, SlowTemplate] = {}
        self.graph = draft.view.graph
        self.nodes = draft.view.graph.workflow.nodes
        self.missing_outputs: set[str] = set()
        self.is_unfinished = False
        self.failing = is_failing(draft.view)
        self._expansions: dict[str, Expansion] = {}

    def run(self, updates: Sequence[TaskUpdate], *, checks_all_nodes: bool) -> Plan:
        has_idle = any(isinstance(update, Idle) for update in updates)
        for update in sorted(updates, key=_idle_last) if has_idle else updates:
            self._apply_update(update)
        self.draft.settle_countdowns()
        self.failing = is_failing(self.draft.view)
        if self.draft.view.stopping:
            self._close()
        if checks_all_nodes:
            self.draft.touched.update(self.nodes)
        self._follow_consequences()
        if self.failing:
            self._wind_down()
        self._conclude()
        if rerunnable_children(self.draft.view, self.planner.chunk, unlimited=self.failing):
            self.is_unfinished = True
        changes = self.draft.finish()
        view = self.result.without_unneeded_outputs()
        is_winding_down = self.failing and not self._is_over(view)
        return Plan(changes, view, frozenset(self.missing_outputs), self.slow, self.is_unfinished, is_winding_down)

    @property
    def _cancel_reason(self) -> str:
        """The reason that cancelled nodes record."""
        stopping = self.draft.view.stopping
        return _CANCEL_REASONS[stopping] if stopping else JOB_FAILED

    def _close(self) -> None:
        """The job is stopping: cancel the nodes that were not dispatched."""
        for node_id in self.graph.order:
            if self.draft.node(node_id).status in (NodeStatus.PENDING, NodeStatus.READY):
                self.draft.cancel(node_id, self._cancel_reason)

    def _is_over(self, view: JobView) -> bool:
        return view.status not in (JobStatus.PENDING, JobStatus.RUNNING)

    # Applying updates

    def _apply_update(self, update: TaskUpdate) -> None:
        draft = self.draft
        match update:
            case Succeeded():
                draft.succeeded(update)
            case Failed():
                self._failed(update, update.error, self._retry_schedule(update, update.error))
            case Overran() | Expired():
                error = _error(_overdue(update), "task.overran", Blame.HANDLER)
                self._failed(update, error, self._retry_schedule(update, error))
            case Lost():
                self._lost(update)
            case Returned():
                draft.started(update)
                if self.failing:
                    draft.withdrawn(update, self._cancel_reason)
                else:
                    draft.ready_again(
                        update, RetrySchedule(update.retry_count, update.loss_count, 0), wait=False, reason="returned"
                    )
            case Started():
                draft.started(update)
            case Due():
                self._due(update)
            case Idle():
                self._rerun_child(update)
            case Withdrawn():
                draft.withdrawn(update, self._cancel_reason)
            case _:
                assert_never(update)

    def _rerun_child(self, update: Idle) -> None:
        """Run a child again: unchanged (the job was resumed), or with new params (its fan_out runs again)."""
        assert update.parent_node_id is not None
        assert update.fan_out_index is not None
        state = self.draft.node(update.parent_node_id)
        is_of_this_run = update.fan_out_index < state.expanded
        if is_of_this_run and self.failing:
            self.draft.withdrawn(update, self._cancel_reason)
        elif is_of_this_run:
            self.draft.resume_child(update)
        elif self.failing or state.status in (NodeStatus.FAILED, NodeStatus.CANCELLED):
            self.draft.close_child(update, NodeStatus.CANCELLED, self._cancel_reason)
        elif state.status is not NodeStatus.READY or (state.is_sized and update.fan_out_index >= state.total):
            self.draft.close_child(update, NodeStatus.SKIPPED, SkipReason.NOT_IN_THIS_RUN.value)
        elif self._has_outputs(update.parent_node_id) and not self.budget.is_spent:
            self._rerender(update, update.parent_node_id, update.fan_out_index)

    def _rerender(self, update: Idle, fan_out: str, index: int) -> None:
        try:
            child, task = self._expansion(fan_out).child(index, attempt=update.attempt + 1)
        except SlowTemplate as slow:
            self.slow[slow.key] = slow
            return
        except UnknownRoute as error:
            self._defer(fan_out, error)
            return
        except DagmasterError as error:
            self._fail_without_worker(fan_out, error)
            self.draft.close_child(update, NodeStatus.CANCELLED, self._cancel_reason)
            return
        self.draft.reuse_child(update, child, task)

    def _failed(
        self, update: Failed | Overran | Expired | Lost, error: dict[str, Any], schedule: RetrySchedule | None
    ) -> None:
        """A final failure may fail the job; then the other updates of this transaction are not retried either."""
        if (
            schedule is None
            and error.get("blame") == Blame.ENVIRONMENT
            and update.loss_count >= self.planner.max_losses
        ):
            self.draft.changes.poisoned.append(PoisonedTask(update.node_id, update.attempt, error["message"]))
        schedule = None if self.failing else schedule
        self.draft.failed(update, error, schedule)
        owner = update.parent_node_id or update.node_id
        if schedule is None and self.nodes[owner].importance is Importance.CRITICAL:
            self.failing = self.failing or update.parent_node_id is None or self.draft.exceeds_tolerance(owner)

    def _retry_schedule(self, update: Failed | Overran | Expired, error: dict[str, Any]) -> RetrySchedule | None:
        return after_failure(
            self._retry_policy(update.parent_node_id or update.node_id),
            Blame(error.get("blame", Blame.HANDLER)),
            retry_count=update.retry_count,
            loss_count=update.loss_count,
            max_losses=self.planner.max_losses,
            random=self.planner.random,
        )

    def _retry_policy(self, node_id: str) -> Retry:
        work = self.graph.work.get(node_id)
        return work.retry if work else Retry(max_attempts=0)

    def _lost(self, update: Lost) -> None:
        if self.draft.view.stopping:
            self.draft.started(update)
            self.draft.withdrawn(update, self._cancel_reason)
            return
        schedule = after_lost_worker(
            retry_count=update.retry_count,
            loss_count=update.loss_count,
            max_losses=self.planner.max_losses,
            random=self.planner.random,
        )
        if schedule and not self.failing:
            self.draft.started(update)
            self.draft.ready_again(update, schedule, wait=True, reason="lost")
            return
        message = f"its worker was lost {update.loss_count + 1} times" if schedule is None else "its worker was lost"
        self._failed(update, _error(message, "task.lost", Blame.ENVIRONMENT), None)

    def _due(self, update: Due) -> None:
        if self.failing:
            self.draft.withdrawn(update, self._cancel_reason)
        elif update.attempt:
            self.draft.redispatch(update)
        elif self._has_outputs(update.node_id) and self._is_rendered(update.node_id):
            self._start_node(update.node_id)  # it failed before a worker received it: render again

    # Settling nodes whose dependencies have ended

    def _follow_consequences(self) -> None:
        """Follow the consequences until no node changes. Every node ends once, so the loop ends."""
        while self.draft.touched:
            affected = self._affected(self.draft.touched)
            self.draft.touched = set()
            for node_id in sorted(affected, key=self.graph.place.__getitem__):
                self._start_or_skip(node_id)

    def _affected(self, touched: Iterable[str]) -> set[str]:
        """The nodes that wait for these, and those that continue by themselves (start, fan_outs with more children)."""
        waiting = {successor for node_id in touched for successor in self.graph.successors[node_id]}
        continuing = {node_id for node_id in touched if isinstance(self.nodes[node_id], FanOutNode | StartNode)}
        readers = (
            {node_id for node_id in self.nodes if fan_out_read_by(self.graph, node_id) in continuing}
            if continuing
            else set()
        )
        return waiting | continuing | readers

    def _start_or_skip(self, node_id: str) -> None:
        state = self.draft.node(node_id)
        if state.status is NodeStatus.READY and isinstance(self.nodes[node_id], FanOutNode | StartNode):
            if not self.failing:
                self._start_node(node_id)
            return
        if state.status is NodeStatus.READY and node_id in self.draft.view.deferred:
            if not self.failing and self._can_start(node_id):
                self._start_node(node_id)
            return
        if state.status is not NodeStatus.PENDING:
            return
        match readiness(self.draft.view, node_id):
            case Readiness.SKIP_BRANCH:
                self.draft.skip(node_id, SkipReason.BRANCH_NOT_TAKEN)
            case Readiness.SKIP_FAILED:
                self.draft.skip(node_id, SkipReason.UPSTREAM_FAILED)
            case Readiness.START if self._may_start(node_id) and self._can_start(node_id):
                self.draft.make_ready(node_id)
                self._start_node(node_id)
            case _:
                pass

    def _may_start(self, node_id: str) -> bool:
        """In a failing job only fan_ins that need no worker start: they gather results or report failed children."""
        node = self.nodes[node_id]
        if not self.failing:
            return True
        return isinstance(node, FanInNode) and (
            node.handler is None or exceeds_tolerance(self.draft.view, self.graph.fan_out_of[node_id])
        )

    def _has_outputs(self, node_id: str) -> bool:
        """Whether the outputs that this node's templates need are loaded; else they are requested."""
        missing = self.draft.view.missing_outputs(node_id)
        self.missing_outputs |= missing
        return not missing

    def _can_start(self, node_id: str) -> bool:
        """Whether the outputs that the node's templates need are loaded, and the budget suffices to render them."""
        return self._has_outputs(node_id) and self._has_budget(node_id) and self._is_rendered(node_id)

    def _is_rendered(self, node_id: str) -> bool:
        """Whether the node's templates are rendered; slow ones are requested, and the node stays as it is."""
        try:
            if isinstance(self.nodes[node_id], ConditionalNode):
                self._choice(node_id)
            elif node_id in self.graph.work and not isinstance(self.nodes[node_id], FanOutNode):
                self._rendered_params(node_id)
        except SlowTemplate as slow:
            self.slow[slow.key] = slow
            return False
        except Exception:
            return True  # the node fails with the same error when it starts
        return True

    def _has_budget(self, node_id: str) -> bool:
        """Whether this transaction may still write the params of this node; else it waits for the next."""
        renders = node_id in self.graph.work or isinstance(self.nodes[node_id], ConditionalNode)
        if not self.budget.is_spent or not renders:
            return True
        self.is_unfinished = True
        return False

    def _start_node(self, node_id: str) -> None:
        node = self.nodes[node_id]
        self.draft.view.deferred.pop(node_id, None)
        try:
            self.draft.view.refuse_unloadable(node_id)
            match node:
                case StartNode() | EndNode():
                    self.draft.complete_without_worker(node_id)
                case TaskNode():
                    self._dispatch(node_id, node.retry, {})
                case ConditionalNode():
                    self._branch(node_id)
                case FanOutNode():
                    self._expand(node_id, node)
                case FanInNode():
                    self._join(node_id, node)
                case _:
                    assert_never(node)
        except SlowTemplate as slow:  # a template of a fan_out, which stays ready
            self.slow[slow.key] = slow
        except UnknownRoute as error:
            self._defer(node_id, error)
        except DagmasterError as error:
            self._fail_without_worker(node_id, error)
        except Exception as error:  # a bug of this software: the node fails with it, so that the job ends
            self._fail_without_worker(node_id, unexpected(error))

    def _defer(self, node_id: str, error: UnknownRoute) -> None:
        """The node stays ready until an orchestrator that knows the handler and the queue owns the job."""
        if error.work in self.unroutable:
            self._fail_without_worker(node_id, error, is_final=True)
        else:
            self.draft.view.deferred[node_id] = error.work

    def _fail_without_worker(self, node_id: str, error: DagmasterError, *, is_final: bool = False) -> None:
        """Fail a node because of its templates, configuration or routing. It is retried if it has a retry policy."""
        node, state = self.nodes[node_id], self.draft.node(node_id)
        schedule = None
        is_final = is_final or self.failing or error.code in _FINAL
        if isinstance(node, TaskNode | FanInNode) and node_id in self.graph.work and not is_final:
            schedule = after_failure(
                node.retry,
                Blame.ENGINE,
                retry_count=state.retry_count,
                loss_count=state.loss_count,
                max_losses=self.planner.max_losses,
                random=self.planner.random,
            )
        self.draft.fail_without_worker(node_id, _error(str(error), error.code, Blame.ENGINE), schedule)
        self.failing = is_failing(self.draft.view)

    # The kinds of nodes

    def _dispatch(self, node_id: str, retry: Retry, extra: dict[str, Any]) -> None:
        work = self.graph.work[node_id]
        route = self.planner.router.route(work)
        params = {**self._rendered_params(node_id), **extra}
        state = self.draft.node(node_id)
        task = NewTask(
            node_id,
            state.attempt + 1,
            route.queue,
            work.handler,
            params,
            route.timeout_seconds,
            state.retry_count,
            work.queue_timeout_seconds,
        )
        self.draft.dispatch(node_id, self.params.task(task, "its params"), retry.max_attempts)

    def _rendered_params(self, node_id: str) -> dict[str, Any]:
        context = self.draft.view.template_context()
        return self.rendering.render((node_id, "params"), self.graph.params[node_id], context)  # type: ignore[no-any-return]

    def _choice(self, node_id: str) -> tuple[Any, int | str, tuple[str, ...]]:
        """The decision of a conditional: its value, the name or number of the branch, and the nodes of that branch."""
        context = self.draft.view.template_context()
        if node_id in self.graph.conditions:
            node = self.nodes[node_id]
            assert isinstance(node, ConditionalNode)
            holds = bool(self.rendering.render((node_id, "condition"), self.graph.conditions[node_id], context))
            return (True, "on_true", node.on_true) if holds else (False, "on_false", node.on_false)
        value = self.rendering.render((node_id, "field"), self.graph.fields[node_id], context)
        return (value, *self._matching_branch(node_id, value))

    def _branch(self, node_id: str) -> None:
        value, branch, chosen = self._choice(node_id)
        output = {"result": value, "branch": branch, "next": list(chosen)}
        size = len(encode(output, "the value of the condition"))
        if size > INLINE_BYTES:
            raise InvalidRequest(
                f"the value of the condition has {size:,} bytes; the limit is {INLINE_BYTES:,}",
                code="condition.too-large",
                hint="let the condition use only a part of the value",
            )
        self.draft.complete_without_worker(node_id, output, chosen=tuple(chosen))

    def _matching_branch(self, node_id: str, value: Any) -> tuple[int, tuple[str, ...]]:
        """The first branch whose condition holds for the value, else the default branch."""
        default: tuple[int, tuple[str, ...]] | None = None
        for number, (condition, targets) in enumerate(self.graph.branches[node_id]):
            if condition is None:
                default = (number, targets)
            else:
                context = self.draft.view.template_context(value=value)
                if self.rendering.render((node_id, "branch", number), condition, context):
                    return number, targets
        assert default is not None, "the loader requires a default branch"
        return default

    def _join(self, node_id: str, node: FanInNode) -> None:
        fan_out = self.graph.fan_out_of[node_id]
        state = self.draft.node(fan_out)
        if exceeds_tolerance(self.draft.view, fan_out):
            raise InvalidRequest(
                f"{state.failed_count} of {state.total} children of '{fan_out}' failed"
                + (f" and {state.cancelled_count} were cancelled" if state.cancelled_count else ""),
                code=CHILDREN_FAILED,
            )
        if node.handler is None:
            refused = self.draft.view.refused_sums.get(fan_out) if node.aggregation is Aggregation.SUM else None
            if refused is not None:
                raise refused
            self.draft.gather(node_id, fan_out, node.aggregation)
        else:
            self._dispatch(node_id, node.retry, {"results_of": results_slice(fan_out, 0, state.total)})

    # Fan-outs

    def _expand(self, node_id: str, node: FanOutNode) -> None:
        """Create the next children, as many as one transaction and `max_parallel` allow."""
        if not self._has_outputs(node_id):
            return
        expansion = self._expansion(node_id)
        total = expansion.total
        if not self.draft.node(node_id).is_sized:
            self.draft.size_fan_out(node_id, total)
        elif total != self.draft.node(node_id).total:
            raise InvalidRequest(
                f"the source of the fan_out makes {total} children; "
                f"it made {self.draft.node(node_id).total} when the fan_out started",
                code="fan-out.source-changed",
                hint="retry the node that creates the source: the fan_out then starts again",
            )
        state = self.draft.node(node_id)
        free = total - state.expanded
        if node.max_parallel is not None:
            free = min(free, node.max_parallel - state.live_children)
        count = max(0, min(free, self.planner.chunk - len(self.draft.changes.tasks)))
        if state.stale_count:
            return  # children of the earlier run are reused first, after they have been read
        if count:
            self._add_children(node_id, expansion, range(state.expanded, state.expanded + count))
        self.is_unfinished = self.is_unfinished or count < free
        if self.draft.node(node_id).expanded == total:
            self.draft.complete_without_worker(node_id, fan.fan_out_output(node_id, total))

    def _expansion(self, fan_out: str) -> Expansion:
        if fan_out not in self._expansions:
            planner = self.planner
            self._expansions[fan_out] = Expansion(
                self.draft.view, fan_out, planner.router, self.params, self.rendering, max_children=planner.max_fan_out
            )
        return self._expansions[fan_out]

    def _add_children(self, node_id: str, expansion: Expansion, indexes: range) -> None:
        children: list[NewChild] = []
        tasks: list[NewTask] = []
        stop_at = self._stop_at()
        for index in indexes:
            is_late = stop_at is not None and self.planner.clock is not None and self.planner.clock() > stop_at
            if self.budget.is_spent or (children and is_late):
                self.is_unfinished = True
                break
            try:
                child, task = expansion.child(index)
            except SlowTemplate as slow:
                self.slow[slow.key] = slow
                break
            children.append(child)
            tasks.append(task)
        if children:
            self.draft.add_children(node_id, children, tasks)

    def _stop_at(self) -> float | None:
        """When to stop creating children: if templates are slow, the next transaction continues after other jobs."""
        return None if self.planner.clock is None else self.planner.clock() + self.planner.expansion_seconds

    # Ending

    def _wind_down(self) -> None:
        """A critical node has failed, or the job is stopping: dispatch no task. Once no task is left, close the nodes
        that never ran."""
        for node_id, state in list(self.draft.view.nodes.items()):
            if state.status is NodeStatus.READY:
                self.draft.cancel(node_id, self._cancel_reason)
        if is_busy(self.draft.view):
            return
        self.draft.touched.update(self.nodes)
        self._follow_consequences()
        for node_id in self.graph.order:
            if self.draft.node(node_id).status is NodeStatus.PENDING:
                has_failed_dependency = readiness(self.draft.view, node_id) is Readiness.SKIP_FAILED
                if has_failed_dependency:
                    self.draft.skip(node_id, SkipReason.UPSTREAM_FAILED)
                else:
                    self.draft.cancel(node_id, self._cancel_reason)

    def _conclude(self) -> None:
        view = self.draft.view
        if self._is_over(view) or not is_ended(view):
            return
        if is_cut_short(view):
            self._conclude_stopped()
            return
        status = outcome(view)
        if status is JobStatus.FAILED:
            self.draft.move_job(status, error_message=self.result.first_error())
            return
        self.missing_outputs |= (missing := self.result.missing_outputs())
        if missing:
            return
        if self.budget.is_spent:
            self.is_unfinished = True
            return
        if status is JobStatus.PARTIAL_SUCCESS and view.status is JobStatus.PENDING:
            # No task was dispatched. A pending job must first become running, and a transaction makes one transition.
            self.draft.move_job(JobStatus.RUNNING)
            self.is_unfinished = True
            return
        try:
            self.draft.move_job(status, result=self.result.render(is_partial=status is JobStatus.PARTIAL_SUCCESS))
        except SlowTemplate as slow:
            self.slow[slow.key] = slow
        except Exception as error:  # including a bug of this software: the job ends with it
            reason = error if isinstance(error, DagmasterError) else unexpected(error)
            self.draft.move_job(
                JobStatus.FAILED, error_message=f"the workflow's outputs could not be rendered: {reason}"
            )

    def _conclude_stopped(self) -> None:
        if self.draft.view.stopping is Stop.CANCELLED:
            self.draft.move_job(JobStatus.CANCELLED)
            return
        seconds = self.graph.workflow.timeout_seconds
        within = f"its timeout of {seconds:g} s" if seconds else "its timeout"
        self.draft.move_job(
            JobStatus.FAILED, error_message=f"the job did not end within {within}", reason=Stop.DEADLINE.value
        )


def _idle_last(update: TaskUpdate) -> tuple[bool, int]:
    """Sort key: children that run again come last, in the order of their index."""
    return isinstance(update, Idle), update.fan_out_index or 0 if isinstance(update, Idle) else 0


def _overdue(update: Overran | Expired) -> str:
    seconds = f"{round(update.seconds, 2):g} s"
    return (
        f"the task waited longer than {seconds} in its queue"
        if isinstance(update, Expired)
        else f"the task ran longer than its timeout of {seconds}"
    )


def _error(message: str, code: str, blame: Blame) -> dict[str, Any]:
    return {"message": message, "code": code, "blame": blame.value}
