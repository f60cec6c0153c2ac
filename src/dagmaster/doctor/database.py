"""The checks of the database: first whether it answers, then the server, then what is in its schema."""

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dagmaster import __version__
from dagmaster.database import OLDEST_MAJOR, budget, token_login
from dagmaster.database.connect import not_deployed
from dagmaster.database.maintenance import server
from dagmaster.database.schema import deploy, platform_role
from dagmaster.doctor import findings
from dagmaster.doctor.findings import FindingLevel, Judgement, Judgements, judge, ok, problem, skipped, some, warning
from dagmaster.doctor.machine import Target
from dagmaster.errors import DagmasterError, NotAllowed
from dagmaster.handlers.registry import installed
from dagmaster.library.workflows import load_library
from dagmaster.local.platform import fast_profile
from dagmaster.orchestrator.routing import RegistryRouter
from dagmaster.quantities import counted, duration, size_text
from dagmaster.records import SCHEMA
from dagmaster.settings import Settings
from dagmaster.workflows.model import work_of

LEAST_BUFFERS_BYTES = 128 << 20
HOUR_SECONDS = 3600.0
MINUTE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Database:
    """A database that answers. An instance counts as dead after `alive_seconds` without a heartbeat."""

    dsn: str
    settings: Settings
    alive_seconds: float
    answer: server.ServerAnswer


def diagnose(target: Target) -> findings.Findings:
    """Checks that cannot work are skipped, with the reason."""
    names = (*SERVER_CHECKS, *SCHEMA_CHECKS)
    database = findings.call_all({"database": lambda: _reach(target)})["database"]
    if database is None:
        reason = "a worker over HTTP has no database" if target.worker_url else "there is no database to check"
        return findings.skip(names, reason)
    if isinstance(database, Exception):
        return findings.skip(names, "the database cannot be reached") | {"postgres": findings.without_secrets(database)}
    results = findings.run(SERVER_CHECKS, database)
    if any(judgement.level is FindingLevel.PROBLEM for judgement in results["schema"]):
        return results | findings.skip(SCHEMA_CHECKS, "the schema is missing or of another version")
    return results | findings.run(SCHEMA_CHECKS, database)


def _reach(target: Target) -> Database | None:
    """On a local platform, an instance counts as dead sooner."""
    settings, dsn, running = target.settings, target.settings.dsn(), None
    with suppress(DagmasterError):  # that the data folder cannot be used is a finding of `platform`
        running = target.running()
    if running and not (dsn or target.url or target.worker_url):
        dsn = running.database_url
    if dsn is None:
        return None
    token_login.enable(settings)
    fast = fast_profile(settings) if running else {}
    alive_seconds = fast.get("orphan_threshold_sec", settings.orphan_threshold_sec)
    return Database(dsn, settings, alive_seconds, server.server(dsn))


def check_server(on: Database) -> Judgements:
    facts, seconds, is_pooled = on.answer
    observation = f"PostgreSQL {facts.version}, answers in {seconds * 1000:.0f} ms"
    overload = "run orchestrators and workers near the database, and check whether the server is overloaded"
    judgements = [judge(seconds, observation, overload, warning=1)]
    if facts.version_number < OLDEST_MAJOR * 10_000:
        judgements.append(problem(observation, f"upgrade the server to PostgreSQL {OLDEST_MAJOR} or newer"))
    if facts.is_standby or facts.is_read_only:
        what = "it is a read-only standby" if facts.is_standby else "default_transaction_read_only is on"
        fix = "use the primary in DATABASE_URL (target_session_attrs=read-write finds it among several hosts)"
        judgements.append(problem(f"{observation}; {what}", fix))
    if is_pooled:
        fix = "use the server itself in DATABASE_URL: roles refuse to start with a pooler, which loses LISTEN"
        judgements.append(problem(f"{observation}; the connection goes through a pooler such as pgbouncer", fix))
    return [judgement for judgement in judgements if judgement.fix] or judgements


# Settings that must not be off, how bad that is, and why.
_MUST_BE_ON = {
    "fsync": (FindingLevel.PROBLEM, "a crash of the machine can destroy the whole database"),
    "full_page_writes": (FindingLevel.PROBLEM, "a crash of the machine can leave torn pages behind"),
    "autovacuum": (FindingLevel.PROBLEM, "tables grow without bound, and query plans get worse"),
    "track_counts": (FindingLevel.PROBLEM, "autovacuum does not know what to clean"),
    "synchronous_commit": (FindingLevel.WARNING, "a crash can lose the last commits"),
}
_ISOLATION = "default_transaction_isolation"


def check_server_settings(on: Database) -> Judgements:
    settings = server.settings(on.dsn)
    for_role = "ALTER ROLE … SET {} = {} for the role of DATABASE_URL"
    judgements = [
        Judgement(level, f"{name} is off: {why}", f"ALTER SYSTEM SET {name} = on, then reload")
        for name, (level, why) in _MUST_BE_ON.items()
        if settings.get(name) == "off"
    ]
    if (buffers := float(settings.get("shared_buffers", LEAST_BUFFERS_BYTES))) < LEAST_BUFFERS_BYTES:
        fix = "ALTER SYSTEM SET shared_buffers to a quarter of the memory, then restart the server"
        judgements.append(warning(f"shared_buffers is only {size_text(int(buffers))}", fix))
    for name in ("idle_session_timeout", "transaction_timeout"):
        if 0 < (seconds := float(settings.get(name, 0))) < HOUR_SECONDS:
            text = f"{name} is {seconds:g} s: it ends sessions that wait"
            judgements.append(warning(text, for_role.format(name, 0)))
    if (isolation := settings.get(_ISOLATION, "read committed")) != "read committed":
        text = f"{_ISOLATION} is {isolation}: transactions fail unnecessarily"
        judgements.append(warning(text, for_role.format(_ISOLATION, "'read committed'")))
    return judgements or [ok("durable, with autovacuum")]


def check_connections(on: Database) -> Judgements:
    settings, used = server.settings(on.dsn), server.row(on.dsn, "doctor_connections").used
    reserved = int(settings.get("superuser_reserved_connections", 0)) + int(settings.get("reserved_connections", 0))
    total = int(settings["max_connections"]) - reserved
    has_broker = on.settings.transport == "servicebus"
    orchestrator = budget.total(budget.orchestrator(has_api=on.settings.api_enabled, has_broker=has_broker))
    worker = budget.total(budget.worker(on.settings.worker_processes))
    needed = orchestrator + worker
    shortage = "; not enough for one more of each" if total - used < needed else ""
    observation = f"{used} of {total} in use; an orchestrator takes up to {orchestrator}, a worker {worker}{shortage}"
    fix = "ALTER SYSTEM SET max_connections to more, then restart the server; or run fewer processes"
    return [judge(total - used, observation, fix, warning=needed, problem=3, is_least=True)]


def check_postgis(on: Database) -> Judgements:
    extension = server.row(on.dsn, "doctor_extension", name="postgis")
    if extension is None:
        fix = "install it on the server, for example with apt-get install postgresql-15-postgis-3"
        return [warning("PostGIS is not available on the server; the STAC catalogue needs it", fix)]
    if extension.installed:
        return [ok(f"PostGIS {extension.installed}")]
    return [ok(f"PostGIS {extension.available} is available; `dagmaster db deploy` installs it with the catalogue")]


def check_notifications(on: Database) -> Judgements:
    seconds = server.notify_seconds(on.dsn)
    if seconds is None:
        fix = "use the server itself in DATABASE_URL, or let the pooler keep sessions (pool_mode=session)"
        return [
            problem(
                "a NOTIFY did not arrive, as with a pooler; work is found later, by polling",
                fix,
            )
        ]
    fix = "check whether the server or the network is overloaded"
    return [judge(seconds, f"a NOTIFY arrives after {seconds * 1000:.0f} ms", fix, warning=0.5)]


def check_clock(on: Database) -> Judgements:
    """Only what the network cannot explain counts."""
    offset, uncertainty = server.clock(on.dsn)
    way = "ahead of" if offset > 0 else "behind"
    observation = f"the server's clock is {abs(offset):.3f} s {way} this machine's, ± {uncertainty:.3f} s"
    fix = "synchronise the clocks of both machines (chrony, systemd-timesyncd); `timedatectl` shows the state"
    yield judge(abs(offset) - uncertainty, observation, fix, warning=1, problem=60)


def check_transactions(on: Database) -> Judgements:
    oldest = server.row(on.dsn, "doctor_oldest_transaction")
    if oldest is None:
        return [ok("none is open")]
    fix = "end it (SELECT pg_terminate_backend(PID), or ROLLBACK PREPARED): it keeps VACUUM from removing dead rows"
    state = oldest.state or "state unknown"
    observation = f"the oldest has been open for {duration(oldest.seconds)}: {oldest.who}, {state}"
    return [judge(oldest.seconds, observation, fix, warning=300, problem=HOUR_SECONDS)]


def check_rights(on: Database) -> Judgements:
    role = server.row(on.dsn, "doctor_role", schema=SCHEMA)
    missing = server.rows(on.dsn, "doctor_rights", schema=SCHEMA)
    who = f"role {role.name}{', a superuser,' if role.is_superuser else ''}"
    if missing:
        counts = ", ".join(counted(count, kind) for kind, count in Counter(right.kind for right in missing).items())
        examples = some([f"{right.lacking} on {right.kind} {right.name}" for right in missing])
        fix = f"as its owner: {platform_role.rights_text(role.name)}"
        yield problem(f"role {role.name} lacks rights on {counts}: {examples}", fix)
    elif role.has_schema or role.may_create:
        yield ok(f"{who} has all rights that the engine needs" if role.has_schema else f"{who} may deploy")
    else:
        fix = f'deploy as the owner of the database, or allow it: GRANT CREATE ON DATABASE … TO "{role.name}"'
        yield problem(f"{who} may not create the schema", fix)


def check_schema(on: Database) -> Judgements:
    ours, deployed = deploy.fingerprint(), server.row(on.dsn, "deployed_schema")
    if deployed is None:
        raise not_deployed()
    limit = ""
    try:
        difference = some(deploy.pending(on.dsn))
    except NotAllowed:
        stored, limit = deployed.fingerprint, "; this role has no right to compare tables"
        difference = f"{stored}, and this software has {ours}" if stored != ours else ""
    fix = "run `dagmaster db migrate` as the owner of the schema; the platform may keep running"
    if difference:
        return [problem(f"it has another version: {difference}", fix)]
    return [ok(f"{ours}, the version of this software{limit}")]


def check_instances(on: Database) -> Judgements:
    instances = server.rows(on.dsn, "doctor_instances")
    alive = [one for one in instances if one.silent_seconds <= on.alive_seconds]
    open_jobs = server.row(on.dsn, "doctor_open_jobs").count
    queued = sum(line.count for line in server.rows(on.dsn, "doctor_queued"))
    for role, work, waiting in (("orchestrator", "job", open_jobs), ("worker", "task", queued)):
        fix = f"start one with `dagmaster {role}`, or a whole platform with `dagmaster up`"
        if count := sum(one.role == role for one in alive):
            yield ok(f"{counted(count, role)} running")
        elif waiting:
            yield problem(f"no {role} is running; {counted(waiting, work)} waiting", fix)
        else:
            yield warning(f"no {role} is running", fix)
    lost = [one for one in instances if on.alive_seconds < one.silent_seconds < HOUR_SECONDS]
    if lost:
        silent = some([f"{one.role} {one.host}/{one.pid} for {duration(one.silent_seconds)}" for one in lost])
        yield warning(f"silent: {silent}", "if it was not stopped on purpose, see its log; others take over its work")
    if others := sorted({one.version for one in alive} - {__version__}):
        fix = "finish the deployment: all processes of one platform should have the same version"
        yield warning(f"some run version {', '.join(others)}, this is {__version__}", fix)


def check_handlers(on: Database) -> Judgements:
    """That no worker runs at all is a finding of `instances`."""
    instances = server.rows(on.dsn, "doctor_instances")
    workers = [one for one in instances if one.role == "worker" and one.silent_seconds <= on.alive_seconds]
    if not workers:
        return [skipped("no worker is running")]
    served = {(queue, handler) for worker in workers for queue in worker.queues for handler in worker.handlers}
    fix = "start a worker that has this handler installed and serves {} (WORKER_QUEUE)"
    judgements = [
        problem(
            f"{counted(line.count, 'task')} of {line.handler} waiting in {line.queue}, which no running worker takes",
            fix.format(line.queue),
        )
        for line in server.rows(on.dsn, "doctor_queued")
        if (line.queue, line.handler) not in served
    ]
    for (queue, handler), workflows in sorted(_needed_handlers(on.settings).items()):
        if (queue, handler) not in served:
            observation = f"no running worker offers {handler} on {queue}; {some(sorted(workflows))} would wait"
            judgements.append(warning(observation, fix.format(queue)))
    return judgements[: 2 * findings.SHOWN] or [ok("the running workers offer all handlers that the workflows need")]


def _needed_handlers(settings: Settings) -> dict[tuple[str, str], set[str]]:
    """The workflows that need a handler, by queue and handler."""
    handlers = installed()
    router = RegistryRouter(handlers, settings.known_queues, settings.default_queue)
    needed: dict[tuple[str, str], set[str]] = defaultdict(set)
    for workflow in load_library(settings, handlers, settings.known_queues).workflows.values():
        for work in filter(None, map(work_of, workflow.nodes.values())):
            needed[router.route(work).queue, work.handler].add(workflow.workflow_id)
    return needed


def check_dead_rows(on: Database) -> Judgements:
    worst = server.row(on.dsn, "doctor_dead_rows", schema=SCHEMA)
    if worst is None:
        return [ok("none")]
    when = "never" if worst.vacuumed_seconds_ago is None else f"{duration(worst.vacuumed_seconds_ago)} ago"
    observation = f"{worst.dead:,} in {worst.table} next to {worst.live:,} live ones, vacuumed {when}"
    fix = f"VACUUM ANALYZE dagapp.{worst.table}; check for a long transaction or an autovacuum that is too slow"
    return [judge(worst.dead, observation, fix, warning=max(100_000, worst.live))]


def check_outbox(on: Database) -> Judgements:
    """With the transport postgres there is no outbox to relay; what another transport has left there is harmless."""
    if on.settings.transport == "postgres":
        return [ok("not used: TRANSPORT is postgres")]
    return [_judge_unsent(queue) for queue in server.rows(on.dsn, "outbox_facts")] or [ok("empty")]


def _judge_unsent(queue: Any) -> Judgement:
    messages, age = counted(queue.messages, "id"), duration(queue.oldest_seconds)
    observation = f"{messages} of tasks in {queue.queue} not sent for {age}"
    if queue.error:
        fix = f"{queue.error}; workers find the tasks by polling meanwhile"
        return judge(queue.oldest_seconds, observation, fix, warning=MINUTE_SECONDS)
    # Ids also wait while all workers are busy.
    fix = "start more workers for this queue, or check that orchestrators run with TRANSPORT=servicebus"
    return judge(queue.oldest_seconds, observation, fix, warning=HOUR_SECONDS)


SERVER_CHECKS: dict[str, Callable[[Database], Judgements]] = {
    "postgres": check_server,
    "postgres-settings": check_server_settings,
    "connections": check_connections,
    "postgis": check_postgis,
    "listen": check_notifications,
    "clock": check_clock,
    "transactions": check_transactions,
    "rights": check_rights,
    "schema": check_schema,
}
SCHEMA_CHECKS: dict[str, Callable[[Database], Judgements]] = {
    "instances": check_instances,
    "handlers": check_handlers,
    "dead-rows": check_dead_rows,
    "outbox": check_outbox,
}
