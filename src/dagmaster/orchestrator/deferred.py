"""Jobs with nodes that this orchestrator cannot route, because it does not know their handler or their queue."""

from collections.abc import Mapping
from uuid import UUID

from dagmaster.database.ledger.protocol import OrchestratorLedger
from dagmaster.observe import log
from dagmaster.orchestrator.owned import Owned
from dagmaster.settings import Settings

_log = log.get(__name__)


async def review_deferred(
    ledger: OrchestratorLedger, jobs: Mapping[UUID, Owned], settings: Settings, now: float
) -> tuple[frozenset[UUID], frozenset[UUID]]:
    """The jobs that were released to another live orchestrator that knows their handlers and queues, and the jobs to
    decide about again, because no live process has known some of their work for UNKNOWN_HANDLER_TIMEOUT_SEC."""
    deferred = [owned for owned in jobs.values() if owned.view is not None and owned.view.deferred]
    if not deferred:
        return frozenset(), frozenset()
    alive = settings.orphan_threshold_sec
    review = await ledger.review_deferred(
        [owned.claim for owned in deferred],
        alive_seconds=alive,
        unknown_after_seconds=settings.unknown_handler_timeout_sec,
    )
    for job_id in review.released:
        _log.info("released a job to an orchestrator that knows its handlers", job_id=str(job_id))
    overdue = set[UUID]()
    for job_id in review.unroutable.keys() - review.released:
        owned = jobs[job_id]
        if now - owned.claimed_at > alive:  # after an outage other processes may start a little later
            owned.unroutable, owned.checks_all_nodes = review.unroutable[job_id], True
            overdue.add(job_id)
    return frozenset(review.released), frozenset(overdue)
