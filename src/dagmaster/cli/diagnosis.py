"""Judge facts: what is well, what is not, and how to fix it. Pure: `doctor` gathers the facts.

A problem keeps the platform from working, or from keeping what it promises. A warning is what someone should know.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from dagmaster.cli.printable import counted

if TYPE_CHECKING:
    from dagmaster.database.maintenance.server import (
        Clock,
        DeadRows,
        Extension,
        InstanceStatus,
        Lacking,
        OpenTransaction,
        Queued,
        Role,
        Server,
    )
    from dagmaster.database.schema.deploy import Status

OLDEST_PYTHON = (3, 11)
# The most connections of one process: its own, its listeners, its API's or its handlers'.
ORCHESTRATOR_CONNECTIONS = 16
WORKER_CONNECTIONS = 6
LEAST_HANDLER_CONNECTIONS = 4

MB, GB = 1 << 20, 1 << 30
_SHOWN = 5
_MINUTE, _HOUR = 60.0, 3600.0
# Docker's default.
_SMALL_SHARED_MEMORY = 64 * MB


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    found: str
    fix: str | None = None


def ok(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)


def warning(check: str, found: str, fix: str) -> Finding:
    return Finding(check, Level.WARNING, found, fix)


def problem(check: str, found: str, fix: str | None) -> Finding:
    return Finding(check, Level.PROBLEM, found, fix)


def skipped(check: str, why: str) -> Finding:
    return Finding(check, Level.SKIPPED, why)


# --- this machine ----------------------------------------------------------------------------------------------------


def judge_python(version: tuple[int, int, int], program: str) -> list[Finding]:
    told = f"{'.'.join(map(str, version))} ({program})"
    if version < OLDEST_PYTHON:
        return [problem("python", told, f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")]
    return [ok("python", told)]


def judge_settings(problems: Sequence[str], warnings: Sequence[str]) -> list[Finding]:
    found = [problem("settings", text, "correct this environment variable; see docs/settings.md") for text in problems]
    found += [warning("settings", text, "correct its name, or unset it") for text in warnings]
    return found or [ok("settings", "all valid")]


@dataclass(frozen=True, slots=True)
class Folder:
    """`nearest` is the folder itself, or the nearest one above it that exists."""

    path: Path
    nearest: Path
    is_folder: bool
    is_writable: bool
    free_bytes: int

    @property
    def exists(self) -> bool:
        return self.path == self.nearest


def judge_folder(check: str, folder: Folder) -> list[Finding]:
    if not folder.is_folder:
        return [problem(check, f"{folder.nearest} is not a folder", "remove it, or choose another one with --data")]
    if not folder.is_writable:
        return [
            problem(
                check,
                f"{folder.nearest} can't be written to",
                f"make it yours (chown {folder.nearest}), or choose another one with --data",
            )
        ]
    told = f"{folder.path}{'' if folder.exists else ' (to be made)'}, {_bytes(folder.free_bytes)} free"
    fix = "make room, or choose a folder on another disk with --data"
    if folder.free_bytes < 200 * MB:
        return [problem(check, told, fix)]
    return [warning(check, told, fix) if folder.free_bytes < 2 * GB else ok(check, told)]


@dataclass(frozen=True, slots=True)
class Private:
    """What only its owner may read."""

    path: Path
    mode: int
    owner: str
    wanted_owner: str


def judge_private(check: str, found: Private) -> list[Finding]:
    if found.owner != found.wanted_owner:
        fix = f"chown {found.wanted_owner} {found.path}"
        return [problem(check, f"{found.path} belongs to {found.owner}, not to {found.wanted_owner}", fix)]
    if found.mode & 0o077:
        fix = f"chmod go= {found.path}"
        return [problem(check, f"{found.path} is open to others (mode {found.mode:04o})", fix)]
    return []


class Holder(StrEnum):
    """Who has a port."""

    NOBODY = "nobody"
    US = "us"
    STRANGER = "stranger"


def judge_port(check: str, variable: str, port: int, holder: Holder, *, is_needed: bool) -> list[Finding]:
    """`is_needed`: it was chosen, so that no other will do."""
    if port == 0:
        return [ok(check, f"{variable}=0: any free port")]
    match holder:
        case Holder.NOBODY:
            return [ok(check, f"port {port} is free")]
        case Holder.US:
            return [ok(check, f"port {port} is held by dagmaster")]
        case Holder.STRANGER:
            fix = f"stop what holds it (`ss -ltnp 'sport = :{port}'` shows it), or choose another {variable}"
            told = f"port {port} is held by another program, or by one of ours that hangs"
            return [
                problem(check, told, fix) if is_needed else warning(check, f"{told}; a free one is taken instead", fix)
            ]


def judge_programs(found: str | None, refusal: tuple[str, str | None] | None, *, is_needed: bool) -> list[Finding]:
    """PostgreSQL's own, for a private cluster."""
    if refusal is None:
        return [ok("postgres-programs", f"{found}")]
    told, fix = refusal
    if is_needed:
        return [problem("postgres-programs", told, fix)]
    return [ok("postgres-programs", f"{told}; not needed: another server is configured")]


def judge_gdal(program: str | None, wheels: Mapping[str, str]) -> list[Finding]:
    found = [program or "no gdalinfo", *(f"{name} {version}" for name, version in sorted(wheels.items()))]
    return [ok("gdal", f"{', '.join(found)}{'' if program and wheels else '; not needed yet'}")]


def judge_shared_memory(total_bytes: int | None) -> list[Finding]:
    if total_bytes is None:
        return [warning("shared-memory", "there is no /dev/shm", "mount a tmpfs on /dev/shm")]
    told = f"{_bytes(total_bytes)} of shared memory"
    if total_bytes <= _SMALL_SHARED_MEMORY:
        fix = "give it more, in a container with --shm-size=512m: PostgreSQL's larger queries may fail"
        return [warning("shared-memory", told, fix)]
    return [ok("shared-memory", told)]


@dataclass(frozen=True, slots=True)
class Api:
    """What an API told of itself; `trouble` where it did not."""

    url: str
    version: str | None = None
    unwell: tuple[str, ...] = ()
    trouble: str | None = None


def judge_api(api: Api, our_version: str) -> list[Finding]:
    if api.trouble:
        fix = "start the platform with `dagmaster up` or an orchestrator, or correct --server (DAGMASTER_URL)"
        return [problem("api", f"{api.url}: {api.trouble}", fix)]
    found = [problem("api", f"{api.url} is not well: {text}", None) for text in api.unwell]
    if api.version != our_version:
        fix = f"use the same version on both sides: pip install dagmaster=={api.version}, or upgrade the platform"
        found.append(warning("api", f"{api.url} is version {api.version}, this is {our_version}", fix))
    return found or [ok("api", f"{api.url} answers, version {api.version}")]


def judge_workflows(count: int, refused: Sequence[str], refused_handlers: Sequence[str]) -> list[Finding]:
    found = [
        problem("workflows", text, "correct the file; `dagmaster workflows validate FILE` shows all of it")
        for text in refused[:_SHOWN]
    ]
    found += [problem("workflows", text, "repair or remove that package") for text in refused_handlers[:_SHOWN]]
    return found or [ok("workflows", f"{count} loaded")]


# --- the server ------------------------------------------------------------------------------------------------------


def judge_server(server: "Server", oldest_major: int) -> list[Finding]:
    told = f"PostgreSQL {server.version}, answers in {server.answer_seconds * 1000:.0f} ms"
    found = []
    if server.version_number < oldest_major * 10_000:
        found.append(problem("postgres", told, f"upgrade the server to PostgreSQL {oldest_major} or newer"))
    if server.is_standby or server.is_read_only:
        what = "it is a standby, which only reads" if server.is_standby else "default_transaction_read_only is on"
        fix = "name the primary in DATABASE_URL (target_session_attrs=read-write finds it among several)"
        found.append(problem("postgres", f"{told}; {what}", fix))
    if server.is_pooled:
        fix = "name the server itself in DATABASE_URL: in a pooler's transaction mode LISTEN and session settings are lost"
        found.append(warning("postgres", f"{told}; a pooler such as pgbouncer stands before it", fix))
    if server.answer_seconds > 1:
        fix = "run orchestrators and workers near the database, and see whether the server is overloaded"
        found.append(warning("postgres", f"{told}, which is slow", fix))
    return found or [ok("postgres", told)]


# Setting: what it must not be, how bad that is, and why.
_BAD_SETTINGS: tuple[tuple[str, str, Level, str], ...] = (
    ("fsync", "off", Level.PROBLEM, "a crash of the machine can destroy the whole database"),
    ("full_page_writes", "off", Level.PROBLEM, "a crash of the machine can leave torn pages behind"),
    ("autovacuum", "off", Level.PROBLEM, "tables grow without bound and plans go astray"),
    ("track_counts", "off", Level.PROBLEM, "autovacuum does not know what to clean"),
    ("synchronous_commit", "off", Level.WARNING, "a crash takes back what was committed in its last moments"),
)
_WANTED_ISOLATION = "read committed"


def judge_server_settings(settings: Mapping[str, str]) -> list[Finding]:
    found = [
        Finding("postgres-settings", level, f"{name} is {bad}: {why}", f"ALTER SYSTEM SET {name} = on, then reload")
        for name, bad, level, why in _BAD_SETTINGS
        if settings.get(name) == bad
    ]
    if float(settings.get("shared_buffers", 128 * MB)) < 128 * MB:
        told = f"shared_buffers is {_bytes(float(settings['shared_buffers']))}, which is tiny"
        fix = "ALTER SYSTEM SET shared_buffers to a quarter of the memory, then restart the server"
        found.append(warning("postgres-settings", told, fix))
    for name in ("idle_session_timeout", "transaction_timeout"):
        if 0 < float(settings.get(name, 0)) < _HOUR:
            told = f"{name} is {float(settings[name]):g} s: it ends sessions that have to wait"
            fix = f"ALTER ROLE … SET {name} = 0 for the role of DATABASE_URL"
            found.append(warning("postgres-settings", told, fix))
    if settings.get("default_transaction_isolation", _WANTED_ISOLATION) != _WANTED_ISOLATION:
        told = (
            f"default_transaction_isolation is {settings['default_transaction_isolation']}: transactions fail in vain"
        )
        fix = "ALTER ROLE … SET default_transaction_isolation = 'read committed' for the role of DATABASE_URL"
        found.append(warning("postgres-settings", told, fix))
    return found or [ok("postgres-settings", "durable, cleaned up by itself; jit is off in our sessions")]


def judge_connections(settings: Mapping[str, str], used: int, worker_processes: int) -> list[Finding]:
    reserved = int(settings.get("superuser_reserved_connections", 0)) + int(settings.get("reserved_connections", 0))
    total = int(settings["max_connections"]) - reserved
    worker = WORKER_CONNECTIONS + max(LEAST_HANDLER_CONNECTIONS, worker_processes)
    told = f"{used} of {total} connections in use; an orchestrator takes up to {ORCHESTRATOR_CONNECTIONS}, a worker {worker}"
    fix = "ALTER SYSTEM SET max_connections to more, then restart the server; or run fewer processes"
    if total - used < 3:
        return [problem("connections", told, fix)]
    if total - used < ORCHESTRATOR_CONNECTIONS + worker:
        return [warning("connections", f"{told}: there is no room for one more of each", fix)]
    return [ok("connections", told)]


def judge_extension(extension: "Extension | None") -> list[Finding]:
    if extension is None:
        fix = "install it on the server, such as apt-get install postgresql-15-postgis-3"
        return [warning("postgis", "PostGIS is not available on the server; geospatial tables will need it", fix)]
    if extension.installed is None:
        return [ok("postgis", f"PostGIS {extension.available} is available, not installed; not needed yet")]
    return [ok("postgis", f"PostGIS {extension.installed}")]


def judge_schema(status: "Status") -> list[Finding]:
    if not status.deployed:
        return [problem("schema", "the database has no dagmaster schema", "run `dagmaster db deploy`")]
    if not status.is_current:
        told = f"of another version: {_some(status.pending)}"
        return [problem("schema", told, "run `dagmaster db migrate`, beside a running platform if need be")]
    return [ok("schema", f"{status.stored}, as this software has it")]


def judge_fingerprint(deployed: str | None, ours: str) -> list[Finding]:
    """For a role that may not compare table by table."""
    if deployed is None:
        return [problem("schema", "the schema was never deployed whole", "run `dagmaster db deploy`")]
    if deployed != ours:
        told = f"deployed is {deployed}, this software has {ours}"
        return [problem("schema", told, "run `dagmaster db migrate` as the owner of the schema")]
    return [ok("schema", f"{deployed}, as this software has it; this role may not look closer")]


def judge_notifications(seconds: float | None) -> list[Finding]:
    if seconds is None:
        fix = "name the server itself in DATABASE_URL, or let the pooler keep sessions (pool_mode=session)"
        told = "a NOTIFY did not arrive: a pooler in transaction mode? Work goes on by polling, a second or two later"
        return [problem("listen", told, fix)]
    told = f"a NOTIFY arrives after {seconds * 1000:.0f} ms"
    if seconds > 0.5:
        return [warning("listen", told, "see whether the server or the network is overloaded")]
    return [ok("listen", told)]


def judge_clock(clock: "Clock") -> list[Finding]:
    surely = max(0.0, abs(clock.offset_seconds) - clock.uncertainty_seconds)
    way = "ahead of" if clock.offset_seconds > 0 else "behind"
    margin = f"give or take {clock.uncertainty_seconds:.3f} s"
    told = f"the server's clock is {abs(clock.offset_seconds):.3f} s {way} this machine's, {margin}"
    fix = "synchronise the clocks of both machines (chrony, systemd-timesyncd); `timedatectl` shows the state"
    if surely > _MINUTE:
        return [problem("clock", told, fix)]
    return [warning("clock", told, fix) if surely > 1 else ok("clock", told)]


def judge_rights(role: "Role", lacking: Sequence["Lacking"], schema: str) -> list[Finding]:
    if lacking:
        kinds = Counter(right.kind for right in lacking)
        counts = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in kinds.items())
        some = _some([f"{right.lacking} on {right.kind} {right.name}" for right in lacking])
        fix = f"as its owner: {_grants(role.name, kinds, schema)}"
        return [problem("rights", f"role {role.name} lacks rights on {counts}: {some}", fix)]
    who = f"role {role.name}{', a superuser,' if role.is_superuser else ''}"
    if role.has_schema:
        return [ok("rights", f"{who} has what the engine needs")]
    if role.may_create:
        return [ok("rights", f"{who} may deploy")]
    fix = f'deploy as the owner of the database, or let it: GRANT CREATE ON DATABASE … TO "{role.name}"'
    return [problem("rights", f"{who} may not make the schema", fix)]


def _grants(role: str, kinds: Collection[str], schema: str) -> str:
    grants = {
        "schema": f'GRANT USAGE ON SCHEMA {schema} TO "{role}";',
        "table": f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO "{role}";',
        "sequence": f'GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO "{role}";',
        "function": f'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO "{role}";',
    }
    return " ".join(grant for kind, grant in grants.items() if kind in kinds)


def judge_transaction(oldest: "OpenTransaction | None") -> list[Finding]:
    if oldest is None:
        return [ok("transactions", "none is open")]
    told = f"the oldest one is open for {_seconds(oldest.seconds)}: {oldest.who}, {oldest.state or 'state unknown'}"
    fix = "end it: nothing that died since can be cleaned up (SELECT pg_terminate_backend(PID), or ROLLBACK PREPARED)"
    if oldest.seconds > _HOUR:
        return [problem("transactions", told, fix)]
    return [warning("transactions", told, fix) if oldest.seconds > 5 * _MINUTE else ok("transactions", told)]


def judge_dead_rows(worst: "DeadRows | None") -> list[Finding]:
    if worst is None:
        return [ok("dead-rows", "none")]
    when = "never" if worst.vacuumed_seconds_ago is None else f"{_seconds(worst.vacuumed_seconds_ago)} ago"
    told = f"{worst.dead:,} in {worst.table} beside {worst.live:,} live ones, vacuumed {when}"
    if worst.dead > 100_000 and worst.dead > worst.live:
        fix = f"VACUUM ANALYZE dagapp.{worst.table}; see whether a long transaction or a weak autovacuum is to blame"
        return [warning("dead-rows", told, fix)]
    return [ok("dead-rows", told)]


# --- who works -------------------------------------------------------------------------------------------------------


def judge_instances(
    seen: Sequence["InstanceStatus"],
    open_jobs: int,
    queued: Sequence["Queued"],
    *,
    within_seconds: float,
    our_version: str,
) -> list[Finding]:
    alive = living(seen, within_seconds)
    waiting = {"orchestrator": open_jobs, "worker": sum(line.count for line in queued)}
    found = [
        finding
        for role, work in waiting.items()
        for finding in _judge_role(role, [one for one in alive if one.role == role], work)
    ]
    lately_lost = [one for one in seen if within_seconds < one.silent_seconds < _HOUR]
    if lately_lost:
        told = _some([f"{one.role} {one.host}/{one.pid} for {_seconds(one.silent_seconds)}" for one in lately_lost])
        fix = "if it was not stopped on purpose, see its log; what it did is taken over by others"
        found.append(warning("instances", f"silent: {told}", fix))
    others = sorted({one.version for one in alive} - {our_version})
    if others:
        fix = "finish the deployment: all processes of one platform should have the same version"
        found.append(warning("instances", f"some run version {', '.join(others)}, this is {our_version}", fix))
    return found


def _judge_role(role: str, alive: Sequence["InstanceStatus"], work: int) -> list[Finding]:
    if alive:
        return [ok("instances", f"{len(alive)} {role}{'s live' if len(alive) > 1 else ' lives'}")]
    waiting = counted(work, "job" if role == "orchestrator" else "task")
    fix = f"start one with `dagmaster {role}`, or a whole platform with `dagmaster up`"
    if work:
        return [problem("instances", f"no {role} lives; {waiting} waiting", fix)]
    return [warning("instances", f"no {role} lives", fix)]


def living(seen: Iterable["InstanceStatus"], within_seconds: float) -> list["InstanceStatus"]:
    return [one for one in seen if one.silent_seconds <= within_seconds]


@dataclass(frozen=True, slots=True)
class Need:
    """A handler that a workflow's tasks need, on their queue."""

    queue: str
    handler: str
    workflow: str


def judge_handlers(
    needs: Iterable[Need], seen: Iterable["InstanceStatus"], queued: Iterable["Queued"], within_seconds: float
) -> list[Finding]:
    """Only where workers live: that there are none is said elsewhere."""
    workers = [one for one in living(seen, within_seconds) if one.role == "worker"]
    if not workers:
        return [skipped("handlers", "no worker lives")]
    offered = {(queue, handler) for worker in workers for queue in worker.queues for handler in worker.handlers}
    found = [
        problem(
            "handlers",
            f"{counted(line.count, 'task')} of {line.handler} waiting in {line.queue}, and no living worker takes them",
            f"start a worker that has this handler installed and serves {line.queue} (WORKER_QUEUE)",
        )
        for line in queued
        if (line.queue, line.handler) not in offered
    ]
    missing: dict[tuple[str, str], set[str]] = {}
    for need in needs:
        if (need.queue, need.handler) not in offered:
            missing.setdefault((need.queue, need.handler), set()).add(need.workflow)
    found += [
        warning(
            "handlers",
            f"no living worker offers {handler} on {queue}; {_some(sorted(workflows))} would wait",
            f"start a worker that has this handler installed and serves {queue} (WORKER_QUEUE)",
        )
        for (queue, handler), workflows in sorted(missing.items())
    ]
    return found[: 2 * _SHOWN] or [ok("handlers", "living workers offer all that the workflows need")]


# --- words -----------------------------------------------------------------------------------------------------------


def _some(things: Sequence[str]) -> str:
    more = f", and {len(things) - _SHOWN} more" if len(things) > _SHOWN else ""
    return "; ".join(things[:_SHOWN]) + more


def _bytes(count: float) -> str:
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / MB:.0f} MB"


def _seconds(seconds: float) -> str:
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.0f} h"
