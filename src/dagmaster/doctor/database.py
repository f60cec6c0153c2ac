"""The checks of the database: first whether it answers, then the server, then what is in its schema."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dagmaster import __version__
from dagmaster.database import OLDEST_MAJOR
from dagmaster.database.maintenance import server
from dagmaster.database.maintenance.server import (
    Clock,
    DeadRows,
    ExtensionFacts,
    InstanceFacts,
    MissingRight,
    OldestTransaction,
    QueuedTasks,
    RoleFacts,
    ServerFacts,
    row,
    rows,
)
from dagmaster.database.schema import deploy
from dagmaster.doctor.findings import (
    HOUR,
    MB,
    MINUTE,
    SHOWN,
    FindingLevel,
    Findings,
    Judgement,
    Judgements,
    call_all,
    graded,
    in_bytes,
    in_time,
    ok,
    problem,
    run,
    skipped,
    some,
    warning,
    without_secrets,
)
from dagmaster.doctor.machine import Target
from dagmaster.errors import NotAllowed
from dagmaster.handlers.registry import installed
from dagmaster.local.platform import fast_profile
from dagmaster.operations.library import load_library
from dagmaster.orchestrator.routing import RegistryRouter
from dagmaster.quantities import counted
from dagmaster.records import SCHEMA
from dagmaster.settings import Settings
from dagmaster.workflows.model import work_of

# The most connections of one process: its own, its listeners', its API's or its handlers'.
ORCHESTRATOR_CONNECTIONS = 16
WORKER_CONNECTIONS = 6
LEAST_HANDLER_CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Database:
    """A database that answers. An instance counts as dead after `alive_seconds` without a heartbeat."""

    dsn: str
    settings: Settings
    alive_seconds: float

    def instances(self) -> list[InstanceFacts]:
        return rows(self.dsn, "doctor_instances", InstanceFacts)

    def queued(self) -> list[QueuedTasks]:
        return rows(self.dsn, "doctor_queued", QueuedTasks)


def findings(target: Target) -> Findings:
    """Checks that cannot work are skipped, with the reason."""
    dsn = call_all({"dsn": target.dsn})["dsn"]
    if not isinstance(dsn, str):
        return _skip(("postgres", *SERVER_CHECKS, *SCHEMA_CHECKS), "there is no database to check")
    answer = call_all({"postgres": lambda: server.server(dsn)})["postgres"]
    if isinstance(answer, Exception):
        unreachable = {"postgres": without_secrets(answer)}
        return unreachable | _skip((*SERVER_CHECKS, *SCHEMA_CHECKS), "the database cannot be reached")
    database = Database(dsn, target.settings, _alive_seconds(target))
    results = {"postgres": without_secrets(judge_server(*answer)), **run(SERVER_CHECKS, database)}
    if any(judgement.level is FindingLevel.PROBLEM for judgement in results["schema"]):
        return results | _skip(SCHEMA_CHECKS, "the schema is missing or of another version")
    return results | run(SCHEMA_CHECKS, database)


def _skip(names: Iterable[str], reason: str) -> Findings:
    return {name: [skipped(reason)] for name in names}


def _alive_seconds(target: Target) -> float:
    """Shorter on a local platform."""
    usual = target.settings.orphan_threshold_sec
    return fast_profile(target.settings).get("orphan_threshold_sec", usual) if target.running() else usual


def judge_server(facts: ServerFacts, answer_seconds: float, is_pooled: bool) -> Judgements:
    found = f"PostgreSQL {facts.version}, answers in {answer_seconds * 1000:.0f} ms"
    judgements = []
    if facts.version_number < OLDEST_MAJOR * 10_000:
        judgements.append(problem(found, f"upgrade the server to PostgreSQL {OLDEST_MAJOR} or newer"))
    if facts.is_standby or facts.is_read_only:
        what = "it is a read-only standby" if facts.is_standby else "default_transaction_read_only is on"
        fix = "use the primary in DATABASE_URL (target_session_attrs=read-write finds it among several hosts)"
        judgements.append(problem(f"{found}; {what}", fix))
    if is_pooled:
        fix = "use the server itself in DATABASE_URL: a pooler in transaction mode loses LISTEN and session settings"
        judgements.append(warning(f"{found}; the connection goes through a pooler such as pgbouncer", fix))
    if answer_seconds > 1:
        fix = "run orchestrators and workers near the database, and check whether the server is overloaded"
        judgements.append(warning(f"{found}, which is slow", fix))
    return judgements or [ok(found)]


# Settings that must not be off, how bad that is, and why.
_MUST_BE_ON = {
    "fsync": (FindingLevel.PROBLEM, "a crash of the machine can destroy the whole database"),
    "full_page_writes": (FindingLevel.PROBLEM, "a crash of the machine can leave torn pages behind"),
    "autovacuum": (FindingLevel.PROBLEM, "tables grow without bound, and query plans get worse"),
    "track_counts": (FindingLevel.PROBLEM, "autovacuum does not know what to clean"),
    "synchronous_commit": (FindingLevel.WARNING, "a crash can lose the last commits"),
}
_ISOLATION = "default_transaction_isolation"


def judge_server_settings(settings: Mapping[str, str]) -> Judgements:
    judgements = [
        Judgement(level, f"{name} is off: {why}", f"ALTER SYSTEM SET {name} = on, then reload")
        for name, (level, why) in _MUST_BE_ON.items()
        if settings.get(name) == "off"
    ]
    buffers = float(settings.get("shared_buffers", 128 * MB))
    if buffers < 128 * MB:
        fix = "ALTER SYSTEM SET shared_buffers to a quarter of the memory, then restart the server"
        judgements.append(warning(f"shared_buffers is only {in_bytes(buffers)}", fix))
    for name in ("idle_session_timeout", "transaction_timeout"):
        if 0 < float(settings.get(name, 0)) < HOUR:
            fix = f"ALTER ROLE … SET {name} = 0 for the role of DATABASE_URL"
            judgements.append(warning(f"{name} is {float(settings[name]):g} s: it ends sessions that wait", fix))
    if settings.get(_ISOLATION, "read committed") != "read committed":
        fix = f"ALTER ROLE … SET {_ISOLATION} = 'read committed' for the role of DATABASE_URL"
        found = f"{_ISOLATION} is {settings[_ISOLATION]}: transactions fail without need"
        judgements.append(warning(found, fix))
    return judgements or [ok("durable, with autovacuum")]


def judge_connections(settings: Mapping[str, str], used: int, worker_processes: int) -> Judgements:
    reserved = int(settings.get("superuser_reserved_connections", 0)) + int(settings.get("reserved_connections", 0))
    total = int(settings["max_connections"]) - reserved
    worker = WORKER_CONNECTIONS + max(LEAST_HANDLER_CONNECTIONS, worker_processes)
    has_room = total - used >= ORCHESTRATOR_CONNECTIONS + worker
    found = f"{used} of {total} in use; an orchestrator takes up to {ORCHESTRATOR_CONNECTIONS}, a worker {worker}"
    found += "" if has_room else "; not enough for one more of each"
    fix = "ALTER SYSTEM SET max_connections to more, then restart the server; or run fewer processes"
    yield graded(found, fix, is_problem=total - used < 3, is_warning=not has_room)


def judge_extension(extension: ExtensionFacts | None) -> Judgements:
    if extension is None:
        fix = "install it on the server, for example with apt-get install postgresql-15-postgis-3"
        yield warning("PostGIS is not available on the server; the STAC catalogue needs it", fix)
    elif extension.installed is None:
        yield ok(f"PostGIS {extension.available} is available, not installed; not needed yet")
    else:
        yield ok(f"PostGIS {extension.installed}")


def judge_notifications(seconds: float | None) -> Judgements:
    if seconds is None:
        fix = "use the server itself in DATABASE_URL, or let the pooler keep sessions (pool_mode=session)"
        yield problem("a NOTIFY did not arrive: a pooler in transaction mode? Polling still finds work, later", fix)
    else:
        fix = "check whether the server or the network is overloaded"
        yield graded(f"a NOTIFY arrives after {seconds * 1000:.0f} ms", fix, is_warning=seconds > 0.5)


def judge_clock(clock: Clock) -> Judgements:
    """Only what the network cannot explain counts."""
    at_least = max(0.0, abs(clock.offset_seconds) - clock.uncertainty_seconds)
    way = "ahead of" if clock.offset_seconds > 0 else "behind"
    margin = f"± {clock.uncertainty_seconds:.3f} s"
    found = f"the server's clock is {abs(clock.offset_seconds):.3f} s {way} this machine's, {margin}"
    fix = "synchronise the clocks of both machines (chrony, systemd-timesyncd); `timedatectl` shows the state"
    yield graded(found, fix, is_problem=at_least > MINUTE, is_warning=at_least > 1)


def judge_transaction(oldest: OldestTransaction | None) -> Judgements:
    if oldest is None:
        return [ok("none is open")]
    found = f"the oldest has been open for {in_time(oldest.seconds)}: {oldest.who}, {oldest.state or 'state unknown'}"
    fix = "end it (SELECT pg_terminate_backend(PID), or ROLLBACK PREPARED): it keeps VACUUM from removing dead rows"
    return [graded(found, fix, is_problem=oldest.seconds > HOUR, is_warning=oldest.seconds > 5 * MINUTE)]


_GRANTS = {
    "schema": 'GRANT USAGE ON SCHEMA {schema} TO "{role}";',
    "table": 'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO "{role}";',
    "sequence": 'GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO "{role}";',
    "function": 'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO "{role}";',
}


def judge_rights(role: RoleFacts | None, missing: Sequence[MissingRight], schema: str) -> Judgements:
    assert role is not None  # a session has a role
    who = f"role {role.name}{', a superuser,' if role.is_superuser else ''}"
    if missing:
        kinds = Counter(right.kind for right in missing)
        counts = ", ".join(counted(count, kind) for kind, count in kinds.items())
        examples = some([f"{right.lacking} on {right.kind} {right.name}" for right in missing])
        grants = " ".join(text.format(schema=schema, role=role.name) for kind, text in _GRANTS.items() if kind in kinds)
        yield problem(f"role {role.name} lacks rights on {counts}: {examples}", f"as its owner: {grants}")
    elif role.has_schema or role.may_create:
        yield ok(f"{who} has all rights that the engine needs" if role.has_schema else f"{who} may deploy")
    else:
        fix = f'deploy as the owner of the database, or allow it: GRANT CREATE ON DATABASE … TO "{role.name}"'
        yield problem(f"{who} may not create the schema", fix)


def _schema(database: Database) -> Judgements:
    try:
        return judge_schema(deploy.status(database.dsn))
    except NotAllowed:
        return judge_fingerprint(server.value(database.dsn, "doctor_fingerprint"), deploy.fingerprint())


def judge_schema(status: deploy.Status) -> Judgements:
    if not status.deployed:
        yield problem("the database has no dagmaster schema", "run `dagmaster db deploy`")
    elif not status.is_current:
        fix = "run `dagmaster db migrate`; the platform may keep running"
        yield problem(f"it has another version: {some(status.pending)}", fix)
    else:
        yield ok(f"{status.stored}, the version of this software")


def judge_fingerprint(deployed: str | None, ours: str) -> Judgements:
    """For a role that may not compare table by table."""
    if deployed is None:
        yield problem("the deployment of the schema was never finished", "run `dagmaster db deploy`")
    elif deployed != ours:
        fix = "run `dagmaster db migrate` as the owner of the schema"
        yield problem(f"{deployed} is deployed, this software has {ours}", fix)
    else:
        yield ok(f"{deployed}, the version of this software; this role has no right to compare tables")


def judge_instances(
    instances: Sequence[InstanceFacts],
    open_jobs: int,
    queued: Sequence[QueuedTasks],
    *,
    alive_seconds: float,
    our_version: str,
) -> Judgements:
    alive = _alive(instances, alive_seconds)
    queued_count = sum(line.count for line in queued)
    for role, work, waiting in (("orchestrator", "job", open_jobs), ("worker", "task", queued_count)):
        fix = f"start one with `dagmaster {role}`, or a whole platform with `dagmaster up`"
        if count := sum(one.role == role for one in alive):
            yield ok(f"{counted(count, role)} running")
        elif waiting:
            yield problem(f"no {role} is running; {counted(waiting, work)} waiting", fix)
        else:
            yield warning(f"no {role} is running", fix)
    lost = [one for one in instances if alive_seconds < one.silent_seconds < HOUR]
    if lost:
        silent = some([f"{one.role} {one.host}/{one.pid} for {in_time(one.silent_seconds)}" for one in lost])
        yield warning(f"silent: {silent}", "if it was not stopped on purpose, see its log; others take over its work")
    if others := sorted({one.version for one in alive} - {our_version}):
        fix = "finish the deployment: all processes of one platform should have the same version"
        yield warning(f"some run version {', '.join(others)}, this is {our_version}", fix)


def _alive(instances: Iterable[InstanceFacts], alive_seconds: float) -> list[InstanceFacts]:
    return [one for one in instances if one.silent_seconds <= alive_seconds]


def judge_handlers(
    needed: Collection[tuple[str, str, str]],
    instances: Iterable[InstanceFacts],
    queued: Iterable[QueuedTasks],
    alive_seconds: float,
) -> Judgements:
    """`needed`: queue, handler and workflow of each node. That no worker runs at all is a finding of `instances`."""
    workers = [one for one in _alive(instances, alive_seconds) if one.role == "worker"]
    if not workers:
        return [skipped("no worker is running")]
    served = {(queue, handler) for worker in workers for queue in worker.queues for handler in worker.handlers}
    fix = "start a worker that has this handler installed and serves {} (WORKER_QUEUE)"
    judgements = [
        problem(
            f"{counted(line.count, 'task')} of {line.handler} waiting in {line.queue}, which no running worker takes",
            fix.format(line.queue),
        )
        for line in queued
        if (line.queue, line.handler) not in served
    ]
    missing: dict[tuple[str, str], set[str]] = {}
    for queue, handler, workflow in needed:
        if (queue, handler) not in served:
            missing.setdefault((queue, handler), set()).add(workflow)
    for (queue, handler), workflows in sorted(missing.items()):
        found = f"no running worker offers {handler} on {queue}; {some(sorted(workflows))} would wait"
        judgements.append(warning(found, fix.format(queue)))
    return judgements[: 2 * SHOWN] or [ok("the running workers offer all handlers that the workflows need")]


def _needed_handlers(settings: Settings) -> set[tuple[str, str, str]]:
    handlers = installed()
    router = RegistryRouter(handlers, settings.known_queues, settings.default_queue)
    return {
        (router.route(work).queue, work.handler, workflow.workflow_id)
        for workflow in load_library(settings, handlers, settings.known_queues).workflows.values()
        for node in workflow.nodes.values()
        if (work := work_of(node)) is not None
    }


def judge_dead_rows(worst: DeadRows | None) -> Judgements:
    if worst is None:
        return [ok("none")]
    when = "never" if worst.vacuumed_seconds_ago is None else f"{in_time(worst.vacuumed_seconds_ago)} ago"
    found = f"{worst.dead:,} in {worst.table} next to {worst.live:,} live ones, vacuumed {when}"
    fix = f"VACUUM ANALYZE dagapp.{worst.table}; check for a long transaction or an autovacuum that is too slow"
    return [graded(found, fix, is_warning=worst.dead > 100_000 and worst.dead > worst.live)]


Check = Callable[[Database], Judgements]

SERVER_CHECKS: dict[str, Check] = {
    "postgres-settings": lambda on: judge_server_settings(server.settings(on.dsn)),
    "connections": lambda on: judge_connections(
        server.settings(on.dsn), server.value(on.dsn, "doctor_connections"), on.settings.worker_processes
    ),
    "postgis": lambda on: judge_extension(row(on.dsn, "doctor_extension", ExtensionFacts, name="postgis")),
    "listen": lambda on: judge_notifications(server.notify_seconds(on.dsn)),
    "clock": lambda on: judge_clock(server.clock(on.dsn)),
    "transactions": lambda on: judge_transaction(row(on.dsn, "doctor_oldest_transaction", OldestTransaction)),
    "rights": lambda on: judge_rights(
        row(on.dsn, "doctor_role", RoleFacts, schema=SCHEMA),
        rows(on.dsn, "doctor_rights", MissingRight, schema=SCHEMA),
        SCHEMA,
    ),
    "schema": _schema,
}
SCHEMA_CHECKS: dict[str, Check] = {
    "instances": lambda on: judge_instances(
        on.instances(),
        server.value(on.dsn, "doctor_open_jobs"),
        on.queued(),
        alive_seconds=on.alive_seconds,
        our_version=__version__,
    ),
    "handlers": lambda on: judge_handlers(_needed_handlers(on.settings), on.instances(), on.queued(), on.alive_seconds),
    "dead-rows": lambda on: judge_dead_rows(row(on.dsn, "doctor_dead_rows", DeadRows, schema=SCHEMA)),
}
