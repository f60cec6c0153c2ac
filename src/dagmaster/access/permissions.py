"""What each scope allows. Every route of every app declares the permission that it needs.

Reading data needs no permission: `decision.read_access` decides it for each version. A permission says which requests a
caller may send at all; which assets a b2b key may see is decided for each asset.
"""

from collections.abc import Mapping
from enum import StrEnum

from dagmaster.access.caller import Caller, Scope


class Permission(StrEnum):
    ANYONE = "anyone"  # probes, pages without data, and what `read_access` decides
    JOBS_READ = "jobs:read"
    JOBS_SUBMIT = "jobs:submit"
    JOBS_OPERATE = "jobs:operate"  # cancel, resume and retry jobs; repeat exports
    WORKFLOWS_READ = "workflows:read"
    WORKFLOWS_WRITE = "workflows:write"  # submit a job with its own definition
    QUEUES_OPERATE = "queues:operate"  # queues, dead letters, callbacks, janitor runs, `/api/admin` of the gateway
    PLATFORM_READ = "platform:read"  # instances, statistics, dead letters, the state of the database
    METRICS_READ = "metrics:read"  # metrics, the details of health checks, the lengths of queues
    TASKS_REPORT = "tasks:report"  # report results of tasks, for workers without database access
    TASKS_EXECUTE = "tasks:execute"  # claim tasks, renew leases, read params and results, report
    ASSETS_READ = "assets:read"  # which versions exist, and their history
    ASSETS_SUBMIT = "assets:submit"
    ASSETS_REVIEW = (
        "assets:review"  # clear, expose, unpublish assets; signed links; commands that review or publish metadata
    )
    ASSETS_DECIDE = "assets:decide"  # approve, reject, unpublish a version; `decision.may_decide` limits b2b keys
    ASSETS_DELETE = "assets:delete"
    METADATA_WRITE = "metadata:write"  # titles, descriptions and styles of layers
    COMMANDS_RUN = "commands:run"  # direct commands; each also needs a permission of its own
    PLATFORMS_WRITE = "platforms:write"
    KEYS_WRITE = "keys:write"
    KEYS_REPORT = "keys:report"  # report that keys were used
    PLATFORM_OPERATE = "platform:operate"  # rebuild the catalogue, make orchestrators reload their workflows
    SCHEMA_WRITE = "schema:write"


_P = Permission
_READS = frozenset({_P.JOBS_READ, _P.WORKFLOWS_READ, _P.PLATFORM_READ, _P.METRICS_READ, _P.ASSETS_READ})
_REVIEWS = frozenset({_P.ASSETS_REVIEW, _P.ASSETS_DECIDE, _P.METADATA_WRITE, _P.COMMANDS_RUN})

ALLOWED: Mapping[Scope, frozenset[Permission]] = {
    Scope.B2B: frozenset({_P.ASSETS_SUBMIT, _P.ASSETS_READ, _P.ASSETS_DECIDE}),
    Scope.VIEWER: frozenset({_P.ASSETS_READ}),
    Scope.REVIEWER: _REVIEWS | {_P.ASSETS_READ, _P.JOBS_READ, _P.WORKFLOWS_READ},
    Scope.AUTHOR: _READS | {_P.JOBS_SUBMIT, _P.WORKFLOWS_WRITE},
    Scope.OPERATOR: _READS
    | _REVIEWS
    | {
        _P.JOBS_SUBMIT,
        _P.JOBS_OPERATE,
        _P.QUEUES_OPERATE,
        _P.ASSETS_SUBMIT,
        _P.ASSETS_DELETE,
        _P.PLATFORM_OPERATE,
    },
    Scope.WORKER: frozenset({_P.TASKS_REPORT, _P.TASKS_EXECUTE}),
    Scope.GATEWAY: frozenset({_P.KEYS_REPORT}),
    Scope.MONITOR: frozenset({_P.METRICS_READ}),
    Scope.ADMIN: frozenset(Permission),
}


def may(caller: Caller, permission: Permission) -> bool:
    return permission is Permission.ANYONE or any(permission in ALLOWED[scope] for scope in caller.scopes)
