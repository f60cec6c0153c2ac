"""Users of the platform: each submits a job, may cancel it, and may run it again.

Their calls have the same faults as those of processes, and are repeated until there is a response.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from dagmaster.client.models.jobs import JobPart
from dagmaster.database.ledger.protocol import NewJob
from dagmaster.errors import Conflict, NotFound, Unavailable
from dagmaster.jobs.states import JOB_TERMINAL
from dagmaster.operations.cancel import cancel
from dagmaster.operations.rerun import resume, retry
from dagmaster.workflows.model import EndNode, FanOutNode, StartNode
from tests.simulation.effects import QUEUE
from tests.simulation.faults import FaultyLedger
from tests.simulation.virtual_loop import Lane

_POLL_SECONDS = 1.5


class SimulatedUser:
    def __init__(self, world: Any, lane: Lane, workflow_id: str) -> None:
        self._world = world
        self._random = world.random
        self._workflow = world.cases[workflow_id].workflow
        self._ledger: Any = FaultyLedger(world, lane, is_user=True)
        self._name = f"from-{lane.name}"

    async def run(self) -> None:
        if self._world.single_fault is not None:
            await self._submit()
            return
        await asyncio.sleep(self._random.choice((0.0, 1.0, 6.0)) * self._random.random())
        if self._random.random() < 0.25:
            await self._limit_the_queue()
        job_id = await (self._submit() if self._random.random() < 0.7 else self._send())
        if self._random.random() < 0.3:
            await asyncio.sleep(self._random.choice((0.5, 4.0, 12.0)) * self._random.random())
            await self._once(lambda: cancel(self._ledger, job_id, by="ana"))
        for _ in range(self._random.choice((0, 0, 1, 2))):
            await self._run_again(job_id)

    async def _submit(self) -> UUID:
        """Each attempt has the same idempotency key, so that all of them make one job."""

        def create() -> Awaitable[UUID]:
            job = NewJob(
                self._world.job_id(),
                self._workflow,
                {},
                submitted_by="ana",
                idempotency_key=self._name,
                priority=self._random.randint(0, 2),
            )
            return self._ledger.create_once(job, "the same")

        job_id: UUID = await self._until_success(create)
        self._world.acknowledged[self._name] = job_id
        return job_id

    async def _send(self) -> UUID:
        """Put a message into the queue of submissions, and repeat it until it is acknowledged."""
        body = {"workflow_id": self._workflow.workflow_id, "input_params": {}}
        await self._until_success(lambda: self._ledger.enqueue_message(self._name, "dag-jobs", body))
        self._world.acknowledged[self._name] = None
        if self._random.random() < 0.3:  # some producers send it twice
            await self._until_success(lambda: self._ledger.enqueue_message(self._name, "dag-jobs", body))
        while True:
            for job in self._world.database.jobs.values():
                if job.message_id == self._name:
                    return job.job_id  # type: ignore[no-any-return]
            await asyncio.sleep(_POLL_SECONDS)

    async def _run_again(self, job_id: UUID) -> None:
        """Run the job again, if it ends while there are still faults."""
        while self._world.database.jobs[job_id].status not in JOB_TERMINAL:
            if not self._world.has_faults:
                return
            await asyncio.sleep(_POLL_SECONDS)
        part = self._a_part(job_id)
        if self._random.random() < 0.5 or part is None:
            await self._once(lambda: resume(self._ledger, job_id, by="ana"))
        else:
            await self._once(lambda: retry(self._ledger, job_id, part, by="ana"))

    def _a_part(self, job_id: UUID) -> JobPart | None:
        nodes = self._workflow.nodes
        names = [name for name, node in nodes.items() if not isinstance(node, StartNode | EndNode)]
        parts = [JobPart(node=name) for name in names]
        parts += [JobPart(failed_children=name) for name in names if isinstance(nodes[name], FanOutNode)]
        rows = self._world.database.nodes[job_id].values()
        parts += [JobPart(node=row.node_id) for row in rows if row.parent_node_id]
        return self._random.choice(parts) if parts else None

    async def _limit_the_queue(self) -> None:
        most = self._random.choice((1, 2))
        await self._until_success(lambda: self._ledger.set_queue(QUEUE, max_running=most))
        if self._random.random() < 0.3:
            await self._until_success(lambda: self._ledger.set_queue(QUEUE, is_paused=True))
            await asyncio.sleep(3 * self._random.random())
            await self._until_success(lambda: self._ledger.set_queue(QUEUE, is_paused=False))

    async def _once(self, create: Callable[[], Awaitable[Any]]) -> None:
        """The call is not repeated after an error."""
        try:
            await create()
        except (Conflict, NotFound, Unavailable):
            return

    async def _until_success(self, create: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await create()
            except Unavailable:
                await asyncio.sleep(self._random.uniform(0.2, 1.0))
