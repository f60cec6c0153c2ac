"""The caller of a request. Authentication creates it for each request; all other code receives only this object."""

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """What a key or a token allows. `b2b` belongs to one platform."""

    B2B = "b2b"
    VIEWER = "viewer"
    REVIEWER = "reviewer"
    AUTHOR = "author"
    OPERATOR = "operator"
    WORKER = "worker"
    GATEWAY = "gateway"
    MONITOR = "monitor"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Caller:
    """`name` is recorded as the actor of what the caller changes; it is unique, and has at most 64 characters.
    `platform_id` is set for the scope b2b only. `queues` limits the tasks that a worker may claim; None means no
    limit."""

    name: str
    scopes: frozenset[Scope] = frozenset()
    platform_id: str | None = None
    queues: frozenset[str] | None = None

    def has(self, *scopes: Scope) -> bool:
        return not self.scopes.isdisjoint(scopes)


ANONYMOUS = Caller("anonymous")
# Names with a colon are also reserved: for tokens (`oidc:…`) and for parts of the software.
RESERVED_NAMES = frozenset({"anonymous", "local", "system"})
