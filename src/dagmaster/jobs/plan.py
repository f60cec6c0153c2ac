"""Decide what a job does next: the brain without hands.

`Planner.decide` looks at a job's view and at what happened, and returns the changes to write with the view that holds once
they are written. It reads no clock and touches no database; the orchestrator gives it facts and carries out what it says.

    news ──▶ fold (results, losses, waits that are over)
         ──▶ settle (nodes whose dependencies have spoken go, are skipped, or wait)
         ──▶ conclude (everything has ended: the job's outcome and result)

What a template needs but isn't at hand is named in `Plan.wanted`; the caller loads it and asks again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol, assert_never

from dagmaster.errors import DagmasterError, InvalidRequest
from dagmaster.jobs import fan
from dagmaster.jobs.changes import Changes, NewChild, NewTask, PoisonedTask
from dagmaster.jobs.draft import Draft
from dagmaster.jobs.model import TaskMessage, child_id, task_id
from dagmaster.jobs.payload import (
    INLINE_BYTES,
    LOADABLE_BYTES,
    TRANSACTION_BYTES,
    Reference,
    by_reference,
    reference_to,
)
from dagmaster.jobs.retry import RetrySchedule, after_failure, after_loss
from dagmaster.jobs.states import Blame, JobStatus, NodeStatus, SkipReason, Stop
from dagmaster.jobs.updates import (
    Due,
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
from dagmaster.workflows.expressions import Compiled, TemplateContext, fits
from dagmaster.workflows.model import (
    ConditionalNode,
    EndNode,
    FanInNode,
    FanOutNode,
    Importance,
    Retry,
    StartNode,
    TaskNode,
    Work,
)
from dagmaster.workflows.storable import encode

JOB_FAILED = "job_failed"
_BECAUSE = {Stop.CANCELLED: "job_cancelled", Stop.DEADLINE: "job_deadline"}
CHILDREN_FAILED = "fan-in.children-failed"
_OF_A_CHILD = frozenset({"item", "index", "items"})
_SURELY_INLINE_BYTES = INLINE_BYTES // 2  # whatever the names in a message are
_MANY = 10**9  # of attempts, or of anything that is counted in a message


@dataclass(frozen=True, slots=True)
class Route:
    queue: str
    timeout_seconds: float


class Router(Protocol):
    def route(self, work: Work) -> Route:
        """Queue and time of this work: what the YAML says, then the handler's registration, then the default."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    changes: Changes
    view: JobView
    wanted: frozenset[str] = frozenset()  # nodes whose outputs must be loaded before the job can go on
    is_unfinished: bool = False  # there is more to write at once (the next chunk of a fan_out)
    is_failing: bool = False


@dataclass(slots=True)
class ByteBudget:
    """How many bytes of params and results a transaction still takes, of all its jobs together. What finds it full waits for
    the next."""

    bytes_left: int = TRANSACTION_BYTES

    @property
    def is_spent(self) -> bool:
        return self.bytes_left <= 0


class _Encoded:
    """Params as JSON. Their hash is worked out where it is needed, once."""

    __slots__ = ("_reference", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._reference: Reference | None = None

    @property
    def reference(self) -> Reference:
        if self._reference is None:
            self._reference = reference_to(self.text)
        return self._reference


@dataclass(slots=True)
class Planner:
    router: Router
    random: Random = field(default_factory=Random)
    max_losses: int = 5
    max_fan_out: int = 100_000
    max_params_bytes: int = LOADABLE_BYTES
    chunk: int = 2000
    clock: Callable[[], float] | None = None  # given where an expansion must not hold up other jobs for long
    expansion_seconds: float = 0.5

    def decide(
        self,
        view: JobView,
        news: Sequence[TaskUpdate],
        *,
        epoch: int,
        sequence: int,
        look_at_all: bool = False,
        stop: StopRequest | None = None,
        budget: ByteBudget | None = None,
    ) -> Plan:
        draft = Draft(view, epoch, sequence)
        if stop is not None and view.stopping is None:
            draft.stop(stop.stop, by=stop.by, why=stop.why)
        return _Decision(self, draft, budget or ByteBudget()).run(news, look_at_all=look_at_all)


class _Decision:
    """One decision about one job."""

    def __init__(self, planner: Planner, draft: Draft, budget: ByteBudget) -> None:
        self.planner = planner
        self.draft = draft
        self.budget = budget
        self.graph = draft.view.graph
        self.nodes = draft.view.graph.workflow.nodes
        self.wanted: set[str] = set()
        self.is_unfinished = False
        self.failing = is_failing(draft.view)
        self._shared_params: dict[str, dict[str, Any]] = {}
        self._shared_encoded: dict[int, _Encoded] = {}
        self._sources: dict[str, Sequence[Any] | None] = {}

    def run(self, news: Sequence[TaskUpdate], *, look_at_all: bool) -> Plan:
        for item in sorted(news, key=_place) if any(isinstance(item, Idle) for item in news) else news:
            self._fold(item)
        self.draft.settle_countdowns()
        self.failing = is_failing(self.draft.view)
        if self.draft.view.stopping:
            self._close()
        if look_at_all:
            self.draft.touched.update(self.nodes)
        self._settle()
        if self.failing:
            self._wind_down()
        self._conclude()
        if rerunnable_children(self.draft.view, self.planner.chunk, unlimited=self.failing):
            self.is_unfinished = True
        changes = self.draft.finish()
        view = self._without_spent_outputs(self.draft.view)
        return Plan(changes, view, frozenset(self.wanted), self.is_unfinished, self.failing and not self._is_over(view))

    @property
    def _because(self) -> str:
        """Why things are cancelled."""
        stopping = self.draft.view.stopping
        return _BECAUSE[stopping] if stopping else JOB_FAILED

    def _close(self) -> None:
        """The job is to end: what has not gone out never will."""
        for node_id in self.graph.order:
            if self.draft.node(node_id).status in (NodeStatus.PENDING, NodeStatus.READY):
                self.draft.cancel(node_id, self._because)

    def _is_over(self, view: JobView) -> bool:
        return view.status not in (JobStatus.PENDING, JobStatus.RUNNING)

    # Folding in what happened

    def _fold(self, news: TaskUpdate) -> None:
        draft = self.draft
        match news:
            case Succeeded():
                draft.succeeded(news)
            case Failed():
                self._failed(news, news.error, self._again(news, news.error))
            case Overran():
                error = _error(_overrun(news), "task.overran", Blame.HANDLER)
                self._failed(news, error, self._again(news, error))
            case Lost():
                self._lost(news)
            case Returned():
                draft.started(news)
                if self.failing:
                    draft.withdrawn(news, self._because)
                else:
                    draft.ready_again(
                        news, RetrySchedule(news.retry_count, news.loss_count, 0), wait=False, reason="returned"
                    )
            case Started():
                draft.started(news)
            case Due():
                self._due(news)
            case Idle():
                self._take_up(news)
            case Withdrawn():
                draft.withdrawn(news, self._because)
            case _:
                assert_never(news)

    def _take_up(self, news: Idle) -> None:
        """A child that waits to run again: as it was (the job was resumed), or as its fan_out has it now (that is run again)."""
        assert news.parent is not None
        assert news.index is not None
        state = self.draft.node(news.parent)
        is_of_this_run = news.index < state.expanded
        if is_of_this_run and self.failing:
            self.draft.withdrawn(news, self._because)
        elif is_of_this_run:
            self.draft.wake(news)
        elif self.failing or state.status in (NodeStatus.FAILED, NodeStatus.CANCELLED):
            self.draft.leave_out(news, NodeStatus.CANCELLED, self._because)
        elif state.status is not NodeStatus.READY or (state.is_sized and news.index >= state.total):
            self.draft.leave_out(news, NodeStatus.SKIPPED, SkipReason.NOT_IN_THIS_RUN.value)
        elif self._has_outputs(news.parent) and not self.budget.is_spent:
            self._redo(news, news.parent, news.index)

    def _redo(self, news: Idle, fan_out: str, index: int) -> None:
        node = self.nodes[fan_out]
        assert isinstance(node, FanOutNode)
        try:
            if fan_out not in self._sources:
                self._sources[fan_out] = self._source(fan_out, node)[0]
            params, label = self._child_params(fan_out, node, self._sources[fan_out], index, self._context())
            route = self.planner.router.route(node.task)
            task = self._child(index, _child_task(news.node_id, node, route, params, attempt=news.attempt + 1))
        except DagmasterError as error:
            self._fail_without_worker(fan_out, error)
            self.draft.leave_out(news, NodeStatus.CANCELLED, self._because)
            return
        self.draft.take_up(news, NewChild(news.node_id, index, label, node.task.retry.max_attempts), task)

    def _failed(self, news: Failed | Overran | Lost, error: dict[str, Any], again: RetrySchedule | None) -> None:
        """A failure that stands may be what fails the job: then the rest of this news is not tried again either."""
        if again is None and error.get("blame") == Blame.ENVIRONMENT and news.loss_count >= self.planner.max_losses:
            self.draft.changes.poisoned.append(PoisonedTask(news.node_id, news.attempt, error["message"]))
        again = None if self.failing else again
        self.draft.failed(news, error, again)
        owner = news.parent or news.node_id
        if again is None and self.nodes[owner].importance is Importance.CRITICAL:
            self.failing = self.failing or news.parent is None or self.draft.exceeds_tolerance(owner)

    def _again(self, news: Failed | Overran, error: dict[str, Any]) -> RetrySchedule | None:
        return after_failure(
            self._retry_policy(news.parent or news.node_id),
            Blame(error.get("blame", Blame.HANDLER)),
            retry_count=news.retry_count,
            loss_count=news.loss_count,
            max_losses=self.planner.max_losses,
            random=self.planner.random,
        )

    def _retry_policy(self, node_id: str) -> Retry:
        work = self.graph.work.get(node_id)
        return work.retry if work else Retry(max_attempts=0)

    def _lost(self, news: Lost) -> None:
        if self.draft.view.stopping:
            self.draft.started(news)
            self.draft.withdrawn(news, self._because)
            return
        again = after_loss(
            retry_count=news.retry_count,
            loss_count=news.loss_count,
            max_losses=self.planner.max_losses,
            random=self.planner.random,
        )
        if again and not self.failing:
            self.draft.started(news)
            self.draft.ready_again(news, again, wait=True, reason="lost")
            return
        message = f"its worker was lost {news.loss_count + 1} times" if again is None else "its worker was lost"
        self._failed(news, _error(message, "task.lost", Blame.ENVIRONMENT), None)

    def _due(self, news: Due) -> None:
        if self.failing:
            self.draft.withdrawn(news, self._because)
        elif news.attempt:
            self.draft.redispatch(news)
        elif self._has_outputs(news.node_id):
            self._go(news.node_id)  # failed before any worker saw it: render again

    # Settling nodes whose dependencies have spoken

    def _settle(self) -> None:
        """Follow the consequences until nothing moves. Every node ends once, so this ends."""
        while self.draft.touched:
            around = self._around(self.draft.touched)
            self.draft.touched = set()
            for node_id in sorted(around, key=self.graph.place.__getitem__):
                self._consider(node_id)

    def _around(self, touched: Iterable[str]) -> set[str]:
        """Whoever waits for one of these, and those that go on by themselves (start, fan_outs with children to make)."""
        waiting = {successor for node_id in touched for successor in self.graph.successors[node_id]}
        alone = {node_id for node_id in touched if isinstance(self.nodes[node_id], FanOutNode | StartNode)}
        readers = (
            {node_id for node_id in self.nodes if fan_out_read_by(self.graph, node_id) in alone} if alone else set()
        )
        return waiting | alone | readers

    def _consider(self, node_id: str) -> None:
        state = self.draft.node(node_id)
        if state.status is NodeStatus.READY and isinstance(self.nodes[node_id], FanOutNode | StartNode):
            if not self.failing:
                self._go(node_id)
            return
        if state.status is not NodeStatus.PENDING:
            return
        match readiness(self.draft.view, node_id):
            case Readiness.SKIP_BRANCH:
                self.draft.skip(node_id, SkipReason.BRANCH_NOT_TAKEN)
            case Readiness.SKIP_FAILED:
                self.draft.skip(node_id, SkipReason.UPSTREAM_FAILED)
            case Readiness.GO if self._may_go(node_id) and self._has_outputs(node_id) and self._has_room(node_id):
                self.draft.make_ready(node_id)
                self._go(node_id)
            case _:
                pass

    def _may_go(self, node_id: str) -> bool:
        """In a failing job only fan_ins that need no worker: they gather what was kept, or say which children failed."""
        node = self.nodes[node_id]
        if not self.failing:
            return True
        return isinstance(node, FanInNode) and (
            node.handler is None or exceeds_tolerance(self.draft.view, self.graph.fan_out_of[node_id])
        )

    def _has_outputs(self, node_id: str) -> bool:
        """Whether what this node's templates need is at hand; else it is asked for."""
        missing = {
            needed
            for needed in self.graph.needs.get(node_id, ())
            if not self._is_at_hand(needed) and self.draft.node(needed).status is NodeStatus.COMPLETED
        }
        self.wanted |= missing
        return not missing

    def _has_room(self, node_id: str) -> bool:
        """Whether what this node sends out may go with this transaction; else it waits for the next."""
        if not self.budget.is_spent or node_id not in self.graph.work:
            return True
        self.is_unfinished = True
        return False

    def _is_at_hand(self, node_id: str) -> bool:
        return node_id in self.draft.view.outputs or node_id in self.draft.view.unloadable

    def _refuse_unloadable(self, node_ids: Iterable[str]) -> None:
        for node_id in node_ids:
            if (why := self.draft.view.unloadable.get(node_id)) is not None:
                raise InvalidRequest(why.message, code=why.code, hint=why.hint)

    def _go(self, node_id: str) -> None:
        node = self.nodes[node_id]
        try:
            self._refuse_unloadable(self.graph.needs.get(node_id, ()))
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
        except DagmasterError as error:
            self._fail_without_worker(node_id, error)

    def _fail_without_worker(self, node_id: str, error: DagmasterError) -> None:
        """Templates, configuration, routing: retried like any failure where the node has a retry policy of its own."""
        node, state = self.nodes[node_id], self.draft.node(node_id)
        again = None
        is_final = self.failing or error.code == CHILDREN_FAILED  # trying again would find the same children
        if isinstance(node, TaskNode | FanInNode) and node_id in self.graph.work and not is_final:
            again = after_failure(
                node.retry,
                Blame.ENGINE,
                retry_count=state.retry_count,
                loss_count=state.loss_count,
                max_losses=self.planner.max_losses,
                random=self.planner.random,
            )
        self.draft.fail_without_worker(node_id, _error(str(error), error.code, Blame.ENGINE), again)
        self.failing = is_failing(self.draft.view)

    # The kinds of nodes

    def _context(self, **names: Any) -> TemplateContext:
        view = self.draft.view
        return TemplateContext(inputs=view.inputs, outputs=view.outputs, job=view.facts(), **names)

    def _dispatch(self, node_id: str, retry: Retry, extra: dict[str, Any]) -> None:
        work = self.graph.work[node_id]
        route = self.planner.router.route(work)
        params = {**self.graph.params[node_id].render(self._context()), **extra}
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
        self.draft.dispatch(node_id, self._task(task, "its params"), retry.max_attempts)

    def _task(self, task: NewTask, what: str = "the params") -> NewTask:
        """The task as its row has it: params that would make its message too large are kept by reference."""
        assert task.params is not None
        encoded = self._encoded(task.params, what)
        size = len(encoded.text)
        if size <= _SURELY_INLINE_BYTES or size + self._envelope_bytes(task) <= INLINE_BYTES:
            self.budget.bytes_left -= size
            return task
        return replace(task, params=None, params_ref=self._keep(encoded))

    def _encoded(self, params: dict[str, Any], what: str) -> _Encoded:
        """Params as JSON, or an error: too much, or what JSON has no place for. Those of all children are encoded once."""
        known = self._shared_encoded.get(id(params))
        if known is not None:
            return known
        limit = self.planner.max_params_bytes
        # Far beyond the limit nobody waits for the exact size: encoding could be what a small template asks too much of.
        text = encode(params, what) if fits(params, 2 * limit) else None
        if text is None or len(text) > limit:
            size = f"more than {2 * limit:,}" if text is None else f"{len(text):,}"
            raise InvalidRequest(
                f"{what} have {size} bytes; the limit is {limit:,}",
                code="params.too-large",
                hint="pass large data by reference, e.g. with results_of",
            )
        encoded = _Encoded(text)
        if any(params is shared for shared in self._shared_params.values()):
            self._shared_encoded[id(params)] = encoded
        return encoded

    def _envelope_bytes(self, task: NewTask) -> int:
        """The most that a message has besides the params, whichever attempt it is of."""
        job_id = self.draft.view.job_id
        message = TaskMessage.model_construct(
            task_id=task_id(job_id, task.node_id, _MANY), job_id=job_id, node_id=task.node_id, attempt=_MANY,
            handler=task.handler, params={}, queue=task.queue, timeout_seconds=task.timeout_seconds, retry_count=_MANY,
            losses=_MANY,
        )  # fmt: skip
        return len(message.model_dump_json().encode())

    def _keep(self, encoded: _Encoded) -> Reference:
        """Let the transaction write this payload, once."""
        payloads, reference = self.draft.changes.payloads, encoded.reference
        if reference["sha256"] not in payloads:
            payloads[reference["sha256"]] = encoded.text
            self.budget.bytes_left -= reference["bytes"]
        return reference

    def _branch(self, node_id: str) -> None:
        context = self._context()
        if node_id in self.graph.conditions:
            node = self.nodes[node_id]
            assert isinstance(node, ConditionalNode)
            holds = bool(self.graph.conditions[node_id].render(context))
            chosen = node.on_true if holds else node.on_false
            output: dict[str, Any] = {
                "result": holds,
                "branch": "on_true" if holds else "on_false",
                "next": list(chosen),
            }
        else:
            value = self.graph.fields[node_id].render(context)
            branch, chosen = self._matching_branch(node_id, value)
            output = {"result": value, "branch": branch, "next": list(chosen)}
        size = len(encode(output, "its value"))
        if size > INLINE_BYTES:
            raise InvalidRequest(
                f"its value has {size:,} bytes; the limit is {INLINE_BYTES:,}",
                code="condition.too-large",
                hint="let the condition look at a part of it",
            )
        self.draft.complete_without_worker(node_id, output, chosen=tuple(chosen))

    def _matching_branch(self, node_id: str, value: Any) -> tuple[int, tuple[str, ...]]:
        """The first branch whose condition holds of the value, else the default one."""
        default: tuple[int, tuple[str, ...]] | None = None
        for number, (condition, targets) in enumerate(self.graph.branches[node_id]):
            if condition is None:
                default = (number, targets)
            elif condition.render(self._context(value=value)):
                return number, targets
        assert default is not None, "the loader demands a default branch"
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
            self.draft.gather(node_id, fan_out, node.aggregation)
        else:
            self._dispatch(node_id, node.retry, {"results_of": _slice(fan_out, 0, state.total)})

    # Fan-outs

    def _expand(self, node_id: str, node: FanOutNode) -> None:
        """Make the next children, as many as one transaction and `max_parallel` allow."""
        if not self._has_outputs(node_id):
            return
        items, total = self._source(node_id, node)
        if not self.draft.node(node_id).is_sized:
            self.draft.size_fan_out(node_id, total)
        elif total != self.draft.node(node_id).total:
            raise InvalidRequest(
                f"its source has {total} items where it had {self.draft.node(node_id).total} when it began",
                code="fan-out.source-changed",
                hint="retry the node before it, which makes this one begin anew",
            )
        state = self.draft.node(node_id)
        room = total - state.expanded
        if node.max_parallel is not None:
            room = min(room, node.max_parallel - state.live_children)
        count = max(0, min(room, self.planner.chunk - self._written()))
        if state.stale_count:
            return  # those of the run before come first, when they have been read
        if count:
            self._add_children(node_id, node, items, range(state.expanded, state.expanded + count))
        self.is_unfinished = self.is_unfinished or count < room
        if self.draft.node(node_id).expanded == total:
            self.draft.complete_without_worker(node_id, fan.fan_out_output(node_id, total))

    def _written(self) -> int:
        return len(self.draft.changes.tasks)

    def _source(self, node_id: str, node: FanOutNode) -> tuple[Sequence[Any] | None, int]:
        """The items (None for children's results, which stay in the database) and how many children they make."""
        items: Sequence[Any] | None = None
        if node.results_of is not None:
            length = self.draft.node(node.results_of).total
        else:
            items = self.graph.sources[node_id].render(self._context())
            if not isinstance(items, list | tuple):
                raise InvalidRequest(f"its source is {type(items).__name__}, not an array", code="fan-out.not-an-array")
            length = len(items)
        total = fan.batch_count(length, node.batch_size)
        if total > self.planner.max_fan_out:
            raise InvalidRequest(
                f"its source makes {total} children, more than the limit of {self.planner.max_fan_out}",
                code="fan-out.too-large",
                hint="set batch_size so that each child takes several items",
            )
        return items, total

    def _add_children(self, node_id: str, node: FanOutNode, items: Sequence[Any] | None, indexes: range) -> None:
        route = self.planner.router.route(node.task)
        context = self._context()
        children: list[NewChild] = []
        tasks: list[NewTask] = []
        stop_at = self._stop_at()
        for index in indexes:
            is_late = stop_at is not None and self.planner.clock is not None and self.planner.clock() > stop_at
            if self.budget.is_spent or (children and is_late):
                self.is_unfinished = True
                break
            params, label = self._child_params(node_id, node, items, index, context)
            name = child_id(node_id, index)
            tasks.append(self._child(index, _child_task(name, node, route, params, attempt=1)))
            children.append(NewChild(name, index, label, node.task.retry.max_attempts))
        if children:
            self.draft.add_children(node_id, children, tasks)

    def _stop_at(self) -> float | None:
        """Templates may be slow. The rest of a chunk then waits for the next transaction, and other jobs get their turn."""
        return None if self.planner.clock is None else self.planner.clock() + self.planner.expansion_seconds

    def _rendered_params(self, node_id: str, context: TemplateContext) -> dict[str, Any]:
        """A child's params; rendered once for all where they don't depend on the child."""
        compiled = self.graph.params[node_id]
        if compiled.names & _OF_A_CHILD:
            return compiled.render(context)  # type: ignore[no-any-return]
        if node_id not in self._shared_params:
            self._shared_params[node_id] = compiled.render(context)
        return self._shared_params[node_id]

    def _child_params(
        self, node_id: str, node: FanOutNode, items: Sequence[Any] | None, index: int, shared: TemplateContext
    ) -> tuple[dict[str, Any], str | None]:
        size = node.batch_size or 1
        names: dict[str, Any] = {"index": index}
        extra: dict[str, Any] = {}
        if items is None:
            total = self.draft.node(node.results_of or "").total
            extra = {"results_of": _slice(node.results_of or "", index * size, min(size, total - index * size))}
        elif node.batch_size:
            names["items"] = items[index * size : (index + 1) * size]
            extra = {"items": names["items"]}
        else:
            names["item"] = items[index]
        try:
            context = shared.having(**names)
            params = self._rendered_params(node_id, context)
            label = self.graph.labels[node_id].render(context) if node_id in self.graph.labels else None
            encode(label, "its label")
        except DagmasterError as error:
            raise _of_child(index, error) from error
        return {**extra, **params} if extra else params, None if label is None else str(label)

    def _child(self, index: int, task: NewTask) -> NewTask:
        try:
            return self._task(task)
        except DagmasterError as error:
            raise _of_child(index, error) from error

    # Ending

    def _wind_down(self) -> None:
        """A critical node has failed: nothing new goes out; when nothing is out any more, what never ran is closed."""
        for node_id, state in list(self.draft.view.nodes.items()):
            if state.status is NodeStatus.READY:
                self.draft.cancel(node_id, self._because)
        if is_busy(self.draft.view):
            return
        self.draft.touched.update(self.nodes)
        self._settle()
        for node_id in self.graph.order:
            if self.draft.node(node_id).status is NodeStatus.PENDING:
                broken = readiness(self.draft.view, node_id) is Readiness.SKIP_FAILED
                if broken:
                    self.draft.skip(node_id, SkipReason.UPSTREAM_FAILED)
                else:
                    self.draft.cancel(node_id, self._because)

    def _conclude(self) -> None:
        view = self.draft.view
        if self._is_over(view) or not is_ended(view):
            return
        if is_cut_short(view):
            self._conclude_stopped()
            return
        status = outcome(view)
        if status is JobStatus.FAILED:
            self.draft.move_job(status, error_message=self._first_error())
            return
        if not self._has_result_outputs():
            return
        if self.budget.is_spent:
            self.is_unfinished = True
            return
        if status is JobStatus.PARTIAL_SUCCESS and view.status is JobStatus.PENDING:
            # Nothing was ever dispatched. There is no step from pending to there, and one step a transaction.
            self.draft.move_job(JobStatus.RUNNING)
            self.is_unfinished = True
            return
        try:
            self.draft.move_job(status, result=self._result(is_partial=status is JobStatus.PARTIAL_SUCCESS))
        except DagmasterError as error:
            self.draft.move_job(JobStatus.FAILED, error_message=f"the workflow's outputs: {error}")

    def _conclude_stopped(self) -> None:
        if self.draft.view.stopping is Stop.CANCELLED:
            self.draft.move_job(JobStatus.CANCELLED)
            return
        seconds = self.graph.workflow.timeout_seconds
        within = f"its {seconds:g} s" if seconds else "its time"
        self.draft.move_job(
            JobStatus.FAILED, error_message=f"the job did not end within {within}", reason=Stop.DEADLINE.value
        )

    def _first_error(self) -> str:
        """The failure that the others followed from, for people: of the most important nodes the first in the order."""
        ranks = list(Importance)
        for node_id in sorted(self.graph.order, key=lambda each: ranks.index(self.nodes[each].importance)):
            state = self.draft.node(node_id)
            if state.status is NodeStatus.FAILED:
                return f"node '{node_id}' failed" + (f": {state.error_message}" if state.error_message else "")
            if state.failed_count and exceeds_tolerance(self.draft.view, node_id):
                return f"{state.failed_count} of {state.total} children of '{node_id}' failed"
            if state.cancelled_count and exceeds_tolerance(self.draft.view, node_id):
                return f"{state.cancelled_count} of {state.total} children of '{node_id}' were cancelled"
        return "a node of the job failed"

    def _result_nodes(self) -> list[str]:
        """The nodes before `end`, in order: what a job answers when its workflow names no outputs."""
        ends = [node_id for node_id, node in self.nodes.items() if isinstance(node, EndNode)]
        before = {source for end in ends for source in (*self.graph.all_of[end], *self.graph.any_of[end])}
        return [
            node_id
            for node_id in self.graph.order
            if node_id in before and self.draft.node(node_id).status is NodeStatus.COMPLETED
        ]

    def _has_result_outputs(self) -> bool:
        if self.graph.outputs is not None:
            return self._has_outputs("")
        missing = {node_id for node_id in self._result_nodes() if not self._is_at_hand(node_id)}
        missing = {node_id for node_id in missing if not isinstance(self.nodes[node_id], StartNode)}
        self.wanted |= missing
        return not missing

    def _result(self, *, is_partial: bool) -> Any:
        if self.graph.outputs is not None:
            self._refuse_unloadable(self.graph.needs.get("", ()))
            context = self._context()
            return {
                name: self._named(name, self._output(compiled, context, is_partial))
                for name, compiled in self.graph.outputs.items()
            }
        return {node_id: self.draft.view.outputs.get(node_id) for node_id in self._result_nodes()}

    def _output(self, compiled: Compiled, context: TemplateContext, is_partial: bool) -> Any:
        """One of the workflow's outputs; in a job that succeeded in part, what is of a node that failed is null."""
        try:
            return compiled.render(context)
        except DagmasterError:
            if is_partial:
                return None
            raise

    def _named(self, name: str, value: Any) -> Any:
        """One of the workflow's outputs as the job's row has it: itself, or if it is large a reference."""
        text = encode(value, f"'{name}'") if fits(value, 2 * LOADABLE_BYTES) else None
        if text is not None and len(text) <= INLINE_BYTES:
            return value
        if text is None or len(text) > LOADABLE_BYTES:
            size = f"more than {2 * LOADABLE_BYTES:,}" if text is None else f"{len(text):,}"
            raise InvalidRequest(
                f"'{name}' has {size} bytes; the limit is {LOADABLE_BYTES:,}",
                code="output.too-large",
                hint="name less of it, or let a handler write it to storage",
            )
        return by_reference(self._keep(_Encoded(text)))

    def _without_spent_outputs(self, view: JobView) -> JobView:
        """Keep only outputs that something may still ask for."""
        keep = {node_id: output for node_id, output in view.outputs.items() if self._is_needed(view, node_id)}
        return view if len(keep) == len(view.outputs) else replace(view, outputs=keep)

    def _is_needed(self, view: JobView, node_id: str) -> bool:
        if self.graph.outputs is None and node_id in self._result_nodes():
            return True
        waiting = (NodeStatus.PENDING, NodeStatus.READY)
        return any(
            consumer == "" or view.nodes[consumer].status in waiting
            for consumer in self.graph.consumers.get(node_id, ())
        )


def _child_task(name: str, node: FanOutNode, route: Route, params: dict[str, Any], *, attempt: int) -> NewTask:
    task = node.task
    return NewTask(
        name, attempt, route.queue, task.handler, params, route.timeout_seconds, 0, task.queue_timeout_seconds
    )


def _of_child(index: int, error: DagmasterError) -> InvalidRequest:
    return InvalidRequest(f"child {index}: {error.message}", code=error.code, hint=error.hint)


def _place(news: TaskUpdate) -> tuple[bool, int]:
    """Children to take up come last, in their order."""
    return isinstance(news, Idle), news.index or 0 if isinstance(news, Idle) else 0


def _overrun(news: Overran) -> str:
    seconds = f"{round(news.seconds, 2):g} s"
    return (
        f"waited longer than {seconds} in its queue" if news.started_at is None else f"took longer than its {seconds}"
    )


def _error(message: str, code: str, blame: Blame) -> dict[str, Any]:
    return {"message": message, "code": code, "blame": blame.value}


def _slice(node_id: str, offset: int, limit: int) -> dict[str, Any]:
    """A reference to children's results, instead of the results."""
    return {"node_id": node_id, "offset": offset, "limit": limit}
