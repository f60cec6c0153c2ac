"""Dead letters: messages that could not be used, with the reason; to look into and to try again."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel

from dagmaster.api.pages import Cursor, Limit, Page, joined, moment_and_id, page_of
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.database.notify.notifier import JOBS
from dagmaster.database.reads.pages import DeadLetterSummary
from dagmaster.errors import Conflict
from dagmaster.operations.rerun import resume

router = APIRouter(prefix="/dead-letters", tags=["dead letters"])

LetterId = Annotated[UUID, Path(description="The dead letter")]


class Replayed(BaseModel):
    """A submission is back in its queue; it becomes a job, or a dead letter again under a new id. Of a task, its job goes on."""

    dead_letter_id: UUID
    queue: str
    message_id: str | None
    job_id: UUID | None


@router.get("", operation_id="list_dead_letters", summary="List dead letters, newest first", responses=responses())
async def list_dead_letters(
    services: Services,
    reason: Annotated[str | None, Query(max_length=64, description="Only those refused for this reason")] = None,
    after: Cursor = None,
    limit: Limit = 50,
) -> Page[DeadLetterSummary]:
    found = await services.reads.dead_letters(
        services.settings.job_queue_name, limit=limit + 1, after=moment_and_id(after), reason=reason
    )
    return page_of(found, limit, lambda letter: joined(letter.created_at.isoformat(), letter.dead_letter_id))


@router.get(
    "/{dead_letter_id}", operation_id="get_dead_letter", summary="Look at a dead letter", responses=responses(404)
)
async def get_dead_letter(services: Services, dead_letter_id: LetterId) -> DeadLetterSummary:
    return await services.reads.dead_letter(services.settings.job_queue_name, dead_letter_id)


@router.post(
    "/{dead_letter_id}/replay",
    operation_id="replay_dead_letter",
    summary="Try a message again",
    status_code=202,
    responses=responses(404, 409),
)
async def replay_dead_letter(services: Services, dead_letter_id: LetterId) -> Replayed:
    """A submission goes back into its queue. A task is a part of its job: the job is resumed, with everything that is missing."""
    letter = await services.reads.dead_letter(services.settings.job_queue_name, dead_letter_id)
    if not letter.is_replayable:
        raise Conflict(
            f"a message of queue {letter.queue} can't be put back: only submissions and tasks are",
            code="dead-letter.not-replayable",
            hint="mend what its description tells of, then send it again",
            queue=letter.queue,
        )
    async with services.ledgers.one() as ledger:
        if letter.job_id is not None:
            await resume(ledger, letter.job_id, reason=f"dead letter {dead_letter_id} is tried again")
            await ledger.drop_dead_letter(dead_letter_id)
        elif not await ledger.replay_dead_letter(dead_letter_id, letter.queue):
            raise Conflict("this message is in its queue again already", code="dead-letter.replayed-already")
    services.notifier.notify(JOBS)
    return Replayed(
        dead_letter_id=dead_letter_id, queue=letter.queue, message_id=letter.message_id, job_id=letter.job_id
    )
