"""Dead letters: messages that could not be processed and tasks that were given up; list and replay them."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.client.models.operations import DeadLetterSummary, Replayed
from dagmaster.client.models.pages import Page
from dagmaster.errors import Conflict
from dagmaster.operations.rerun import resume
from dagmaster.web.authentication import needs, requires
from dagmaster.web.pages import Cursor, Limit, joined, moment_and_id, page_of

router = APIRouter(prefix="/dead-letters", tags=["dead letters"])
_READS = [requires(Permission.PLATFORM_READ)]

LetterId = Annotated[UUID, Path(description="The id of the dead letter")]


@router.get(
    "",
    operation_id="list_dead_letters",
    summary="List dead letters, newest first",
    responses=responses(),
    dependencies=_READS,
)
async def list_dead_letters(
    services: Services,
    reason: Annotated[str | None, Query(max_length=64, description="Only dead letters with this reason")] = None,
    after: Cursor = None,
    limit: Limit = 50,
) -> Page[DeadLetterSummary]:
    rows = await services.reads.dead_letters(
        services.settings.job_queue_name, limit=limit + 1, after=moment_and_id(after), reason=reason
    )
    return page_of(rows, limit, lambda letter: joined(letter.created_at.isoformat(), letter.dead_letter_id))


@router.get(
    "/{dead_letter_id}",
    operation_id="get_dead_letter",
    summary="Get a dead letter",
    responses=responses(404),
    dependencies=_READS,
)
async def get_dead_letter(services: Services, dead_letter_id: LetterId) -> DeadLetterSummary:
    return await services.reads.dead_letter(services.settings.job_queue_name, dead_letter_id)


@router.post(
    "/{dead_letter_id}/replay",
    operation_id="replay_dead_letter",
    summary="Replay a dead letter",
    status_code=202,
    responses=responses(404, 409),
)
async def replay_dead_letter(
    services: Services,
    caller: Annotated[Caller, Depends(needs(Permission.QUEUES_OPERATE))],
    dead_letter_id: LetterId,
) -> Replayed:
    """A submission is put back into its queue. For a task, its job is resumed, which runs everything that is
    missing."""
    letter = await services.reads.dead_letter(services.settings.job_queue_name, dead_letter_id)
    if not letter.is_replayable:
        raise Conflict(
            f"a message of queue {letter.queue} cannot be replayed: only submissions and tasks can",
            code="dead-letter.not-replayable",
            hint="correct the error that the dead letter describes, then send the message again",
            queue=letter.queue,
        )
    async with services.ledgers.acquire() as ledger:
        if letter.job_id is not None:
            await resume(ledger, letter.job_id, by=caller.name, reason=f"dead letter {dead_letter_id} was replayed")
            await ledger.drop_dead_letter(dead_letter_id)
        elif not await ledger.replay_dead_letter(dead_letter_id, letter.queue):
            raise Conflict("this dead letter was replayed already", code="dead-letter.replayed-already")
    return Replayed(
        dead_letter_id=dead_letter_id, queue=letter.queue, message_id=letter.message_id, job_id=letter.job_id
    )
