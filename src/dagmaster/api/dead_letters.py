"""Dead letters: messages that could not be used, with the reason; to look into and to try again [Q4]."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel

from dagmaster.api.pages import Cursor, Limit, Page, joined, moment_and_id, page_of
from dagmaster.api.parts import Here
from dagmaster.api.problems import responses
from dagmaster.database.bell import JOBS
from dagmaster.errors import Conflict
from dagmaster.jobs.model import DeadLetter

router = APIRouter(prefix="/dead-letters", tags=["dead letters"])

LetterId = Annotated[UUID, Path(description="The dead letter")]


class Replayed(BaseModel):
    """The message is back in its queue. It becomes a job, or a dead letter again, under a new id."""

    dead_letter_id: UUID
    queue: str
    message_id: str | None


@router.get("", operation_id="list_dead_letters", summary="List dead letters, newest first", responses=responses())
async def list_dead_letters(
    here: Here,
    reason: Annotated[str | None, Query(max_length=64, description="Only those refused for this reason")] = None,
    after: Cursor = None,
    limit: Limit = 50,
) -> Page[DeadLetter]:
    found = await here.reads.dead_letters(limit=limit + 1, after=moment_and_id(after), reason=reason)
    return page_of(found, limit, lambda letter: joined(letter.created_at.isoformat(), letter.dead_letter_id))


@router.get(
    "/{dead_letter_id}", operation_id="get_dead_letter", summary="Look at a dead letter", responses=responses(404)
)
async def get_dead_letter(here: Here, dead_letter_id: LetterId) -> DeadLetter:
    return await here.reads.dead_letter(dead_letter_id)


@router.post(
    "/{dead_letter_id}/replay",
    operation_id="replay_dead_letter",
    summary="Put a message back into its queue",
    status_code=202,
    responses=responses(404, 409),
)
async def replay_dead_letter(here: Here, dead_letter_id: LetterId) -> Replayed:
    letter = await here.reads.dead_letter(dead_letter_id)
    if letter.queue != here.settings.job_queue_name:
        raise Conflict(
            f"a message of queue {letter.queue} can't be put back", code="dead-letter.not-replayable",
            hint=f"only submissions (queue {here.settings.job_queue_name}) are; submit the job of this task again",
            queue=letter.queue,
        )  # fmt: skip
    async with here.ledgers.one() as ledger:
        is_back = await ledger.replay_dead_letter(dead_letter_id, letter.queue)
    if not is_back:
        raise Conflict("this message is in its queue again already", code="dead-letter.replayed-already")
    here.bell.ring(JOBS)
    return Replayed(dead_letter_id=dead_letter_id, queue=letter.queue, message_id=letter.message_id)
