"""Problems of the old API: problem details as everywhere, with the two fields that old clients read."""

from typing import Final

import orjson
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dagmaster.web.problems import MEDIA_TYPE

OLD_PREFIXES: Final = ("/api/jobs/", "/api/dbadmin/")


class OldProblems:
    """Adds `error` (the code) and `message` (the detail) to the problems of the old paths."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_old = scope["type"] == "http" and scope["path"].startswith(OLD_PREFIXES)
        await self._app(scope, receive, _Rewritten(send) if is_old else send)


class _Rewritten:
    """Buffers a problem until it is complete. Other responses pass through."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_problem(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._finish(self._start)

    async def _finish(self, start: Message) -> None:
        problem = orjson.loads(self._body)
        body = orjson.dumps({**problem, "error": problem["code"], "message": problem["detail"]})
        MutableHeaders(scope=start)["content-length"] = str(len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def _is_problem(start: Message) -> bool:
    return MutableHeaders(scope=start).get("content-type", "").partition(";")[0] == MEDIA_TYPE
