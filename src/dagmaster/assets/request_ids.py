"""The id under which a request of a platform is stored.

Each platform chooses the ids of its requests. The request of the first platform that uses an id is stored under this
id. The request of another platform with the same id is stored under a substitute, which platforms do not see.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from dagmaster.errors import Conflict

PREFIX: Final = "~"  # an id that a platform sends does not begin with it
_DIGITS: Final = 40


def substitute_id(request_id: str, platform_id: str) -> str:
    """The id of a platform's request whose own id was taken by another platform."""
    return PREFIX + hashlib.sha256(f"{platform_id}|{request_id}".encode()).hexdigest()[:_DIGITS]


def possible_ids(request_id: str, platform_ids: Iterable[str]) -> list[str]:
    """All ids under which a request of one of these platforms may be stored."""
    return [request_id, *(substitute_id(request_id, platform_id) for platform_id in platform_ids)]


def ambiguous(request_id: str, platform_ids: Iterable[str]) -> Conflict:
    """The error for callers that see the requests of all platforms: they could change the wrong one."""
    return Conflict(
        f"requests of several platforms have the id '{request_id}': {', '.join(sorted(platform_ids))}",
        code="submission.ambiguous",
        hint="use the id of the asset and the number of the version",
    )
