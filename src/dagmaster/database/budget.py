"""How many connections one process of each role opens at most, by their purpose.

The names are those in `pg_stat_activity.application_name`, after the prefix `dagmaster-`. A test compares this table
with running processes, and docs/guides/scale.md with this table.
"""

from typing import Final

Budget = dict[str, int]

NOTIFICATIONS: Final[Budget] = {"listen": 1, "notify": 1}
ENGINE: Final[Budget] = {
    **NOTIFICATIONS,
    **dict.fromkeys(("orchestrator", "beat"), 1),
    # Background tasks; each connects when it first has something to do.
    **dict.fromkeys(("janitor", "retention", "tidy", "asset-upkeep", "adoption", "callbacks", "caches", "external"), 1),
    "external-layers": 1,  # with EXTERNAL_DATABASE_URL
}
API: Final[Budget] = {
    "listen": 2,  # one for the API itself, one for workers over HTTP
    "notify": 2,
    "api": 6,  # with DATABASE_POOLER_URL these are connections of the pooler
    "api-keys": 8,
    "api-ledger": 3,
    "assets": 6,
    "uploads": 4,
    # For workers over HTTP.
    "api-work": 4,
    "api-lease": 2,
    "api-payload": 4,
}
BROKER: Final[Budget] = {"relay": 1, "job-queue": 1}  # with TRANSPORT=servicebus
WORKER: Final[Budget] = {**NOTIFICATIONS, **dict.fromkeys(("worker", "lease", "handler", "rescue"), 1)}
SERVING: Final[Budget] = {"serving": 4, "serving-access": 4, "serving-keys": 4, "stac": 4}
GATEWAY: Final[Budget] = {"gateway": 8}
MIN_HANDLER_CONNECTIONS: Final = 4


def orchestrator(*, has_api: bool = True, has_broker: bool = False) -> Budget:
    parts = [ENGINE, API if has_api else {}, BROKER if has_broker else {}]
    return {name: sum(part.get(name, 0) for part in parts) for name in {**parts[0], **parts[1], **parts[2]}}


def worker(processes: int) -> Budget:
    """With the pool that async handlers use; each plain handler that calls `ctx.connect()` adds a connection."""
    return {**WORKER, "handlers": max(MIN_HANDLER_CONNECTIONS, processes)}


def total(budget: Budget) -> int:
    return sum(budget.values())
