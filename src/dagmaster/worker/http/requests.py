"""Requests of a worker to the API, and the translation of their errors for the worker's loop.

The loop keeps its reports and tries again if the platform is unavailable. A revoked key, a proxy that responds instead
of the platform, and a platform of an older version count as unavailable too: someone may correct them, and no result is
lost meanwhile. Only errors of a request itself are passed on: the loop then finds the report that is refused.
"""

from typing import Any, TypeVar
from uuid import UUID

import httpx2
from pydantic import BaseModel, ValidationError

from dagmaster.client.connection import ApiConnection
from dagmaster.client.models.base import unexpected
from dagmaster.errors import Conflict, DagmasterError, Fenced, InvalidRequest, NotAllowed, NotFound, Unavailable

M = TypeVar("M", bound=BaseModel)


class WorkerRequests:
    """Sends the requests of a worker. Tasks of one event loop may share it."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def send(self, method: str, worker_id: UUID, path: str, response: type[M], **options: Any) -> M:
        """Send a request, and return its validated response."""
        return parsed(response, (await self.request(method, worker_id, path, **options)).content)

    async def request(self, method: str, worker_id: UUID, path: str, **options: Any) -> httpx2.Response:
        try:
            return await self._connection.request(method, f"/worker/{worker_id}{path}", **options)
        except DagmasterError as error:
            raise translated(error) from None


def parsed(kind: type[M], content: bytes) -> M:
    """A response as a model. Unknown fields are ignored; a response that is not valid counts as an outage."""
    try:
        return kind.model_validate_json(content, extra="ignore", context="client")
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise unexpected(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def translated(error: DagmasterError) -> DagmasterError:
    if error.code == "worker.not-held":
        return Fenced("this attempt no longer holds its task")
    is_request_error = isinstance(error, InvalidRequest | Conflict) and not isinstance(error, NotAllowed)
    is_missing_payload = isinstance(error, NotFound) and error.code.startswith("payload.")
    if isinstance(error, Unavailable) or is_request_error or is_missing_payload:
        return error
    return Unavailable(error.message, code=error.code, hint=error.hint, **error.facts)
