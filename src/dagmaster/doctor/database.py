"""The checks of the database: first whether it responds, then the server, then what is in its schema."""

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

from dagmaster import __version__
from dagmaster.database import OLDEST_MAJOR, budget, token_login
from dagmaster.database.connect import not_deployed, pooled, read_only, too_old
from dagmaster.database.maintenance import server
from dagmaster.database.schema import deploy, platform_role
from dagmaster.database.schema.expected import missing_parts
from dagmaster.doctor import findings
from dagmaster.doctor.findings import Judgements, judge, listed, named, ok, problem, skip, skipped, warning
from dagmaster.doctor.machine import Target
from dagmaster.errors import DagmasterError, NotAllowed
from dagmaster.handlers.registry import installed
from dagmaster.library.workflows import load_library
from dagmaster.local.platform import fast_profile
from dagmaster.orchestrator.routing import RegistryRouter
from dagmaster.quantities import counted, duration
from dagmaster.records import SCHEMA
from dagmaster.settings import Settings
from dagmaster.workflows.model import work_of

HOUR_SECONDS = 3600.0


@dataclass(frozen=True)
class Database:
    """A database that responds, and its orchestrators and workers, which are read once."""

    dsn: str
    settings: Settings
    response: server.ServerResponse

    @cached_property
    def instances(self) -> list[Any]:
        return server.rows(self.dsn, "doctor_instances")

    @property
    def alive(self) -> list[Any]:
        return [one for one in self.instances if one.silent_seconds <= self.settings.orphan_threshold_sec]


def diagnose(target: Target) -> findings.Findings:
    """Checks that cannot work are skipped, with the reason."""
    names = (*SERVER_CHECKS, *SCHEMA_CHECKS)
    (database,) = findings.call_all(_reach, [target])
    if database is None:
        reason = "a worker over HTTP has no database" if target.worker_url else "there is no database to check"
        return skip(names, reason)
    if isinstance(database, BaseException):
        return skip(names, "the database cannot be reached") | {"postgres": findings.without_secrets(database)}
    results = findings.run(SERVER_CHECKS, database)
    if any(judgement.level is findings.FindingLevel.PROBLEM for judgement in results["schema"]):
        return results | skip(SCHEMA_CHECKS, "the schema is missing or of another version")
    return results | findings.run(SCHEMA_CHECKS, database)


def _reach(target: Target) -> Database | None:
    """Connect to the database; None if there is none. On a local platform, an instance counts as dead sooner."""
    settings, running = target.settings, None
    with suppress(DagmasterError):  # that the data folder cannot be used is a finding of `platform`
        running = target.running()
    dsn = settings.dsn() or (running.database_url if running else None)
    if dsn is None:
        return None
    token_login.enable(settings)
    if running:
        settings = settings.model_copy(update=fast_profile(settings))
    return Database(dsn, settings, server.server(dsn))


def check_postgres(on: Database) -> Judgements:
    """The problems are the errors with which roles refuse a server."""
    facts, seconds, is_pooled = on.response
    refusals = (
        (facts.version_number < OLDEST_MAJOR * 10_000, too_old(facts.version_number)),
        (facts.is_standby, read_only("it is a standby")),
        (facts.is_read_only, read_only("default_transaction_read_only is on")),
        (is_pooled, pooled()),
    )
    fix = "run orchestrators and workers near the database, and check whether the server is overloaded"
    responding = judge(seconds, f"PostgreSQL {facts.version}, responds in {seconds * 1000:.0f} ms", fix, warning=1)
    return [problem(error.message, error.hint) for is_refused, error in refusals if is_refused] or [responding]


_TURN_ON = "ALTER SYSTEM SET {} = on, then reload"
_TURN_OFF = "ALTER ROLE … SET {} = 0 for the role of DATABASE_URL"
_COMMITTED = "ALTER ROLE … SET {} = 'read committed' for the role of DATABASE_URL"
_ENLARGE = "ALTER SYSTEM SET {} to a quarter of the memory, then restart the server"
# Settings, whether a value is wrong, how bad that is, why, and how to fix it. Sizes are in bytes, times in seconds.
_SERVER_SETTINGS: tuple[tuple[str, Callable[[str], bool], partial[findings.Judgement], str, str], ...] = (
    ("fsync", "off".__eq__, problem, "a crash of the machine can destroy the whole database", _TURN_ON),
    ("full_page_writes", "off".__eq__, problem, "a crash of the machine can leave torn pages behind", _TURN_ON),
    ("autovacuum", "off".__eq__, problem, "tables grow without bound, and query plans get worse", _TURN_ON),
    ("track_counts", "off".__eq__, problem, "autovacuum does not know what to clean", _TURN_ON),
    ("synchronous_commit", "off".__eq__, warning, "a crash can lose the last commits", _TURN_ON),
    ("shared_buffers", lambda size: int(size) < 128 << 20, warning, "less than 128 MiB (134217728)", _ENLARGE),
    ("idle_session_timeout", lambda time: 0 < float(time) < 3600, warning, "it ends sessions that wait", _TURN_OFF),
    ("transaction_timeout", lambda time: 0 < float(time) < 3600, warning, "it ends sessions that wait", _TURN_OFF),
    ("default_transaction_isolation", "read committed".__ne__, warning, "conflicts abort transactions", _COMMITTED),
)


def check_postgres_settings(on: Database) -> Judgements:
    settings = server.settings(on.dsn)
    return [
        judgement(f"{name} is {settings[name]}: {why}", fix.format(name))
        for name, is_wrong, judgement, why, fix in _SERVER_SETTINGS
        if name in settings and is_wrong(settings[name])
    ] or [ok("durable, with autovacuum")]


def check_connections(on: Database) -> Judgements:
    settings, used = server.settings(on.dsn), on.response.facts.connections
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


def check_listen(on: Database) -> Judgements:
    seconds = server.notify_seconds(on.dsn)
    if seconds is None:
        fix = "use the address of the server itself in DATABASE_URL; that of a pooler belongs in DATABASE_POOLER_URL"
        return [problem("a NOTIFY did not arrive, perhaps because of a pooler; work is found later, by polling", fix)]
    fix = "check whether the server or the network is overloaded"
    return [judge(seconds, f"a NOTIFY arrives after {seconds * 1000:.0f} ms", fix, warning=0.5)]


def check_clock(on: Database) -> Judgements:
    """A difference that the delay of the network can explain is ignored."""
    offset, uncertainty = server.clock(on.dsn)
    direction = "ahead of" if offset > 0 else "behind"
    observation = f"the server's clock is {abs(offset):.3f} s {direction} this machine's, ± {uncertainty:.3f} s"
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
    role_text = f"role {role.name}{', a superuser,' if role.is_superuser else ''}"
    if missing := server.rows(on.dsn, "doctor_rights", schema=SCHEMA):
        lacking = listed([f"{right.lacking} on {right.kind} {right.name}" for right in missing])
        yield problem(f"{role_text} lacks rights: {lacking}", f"as its owner: {platform_role.rights_text(role.name)}")
    elif role.has_schema or role.may_create:
        yield ok(f"{role_text} has all rights that the engine needs" if role.has_schema else f"{role_text} may deploy")
    else:
        fix = f'deploy as the owner of the database, or allow it: GRANT CREATE ON DATABASE … TO "{role.name}"'
        yield problem(f"{role_text} may not create the schema", fix)


def check_schema(on: Database) -> Judgements:
    expected, deployed = deploy.fingerprint(), server.row(on.dsn, "deployed_schema")
    if deployed is None:
        raise not_deployed()
    try:
        difference = listed(deploy.pending(on.dsn))
    except NotAllowed:  # only the owner can compare tables
        difference = (
            "" if deployed.fingerprint == expected else f"{deployed.fingerprint}, and this software has {expected}"
        )
    if not difference:
        return [ok(f"{expected}, the version of this software")]
    migrate = "run `dagmaster db migrate` as the owner of the schema; the platform may keep running"
    if deployed.fingerprint == expected or missing_parts(part.name for part in server.rows(on.dsn, "deployed_parts")):
        return [problem(f"it has another version: {difference}", migrate)]
    observation = f"it has another version, with all columns and functions that this software needs: {difference}"
    return [warning(observation, f"if the schema is newer than this software, leave it as it is; otherwise {migrate}")]


def check_instances(on: Database) -> Judgements:
    for role, work, query in (("orchestrator", "job", "doctor_open_jobs"), ("worker", "task", "doctor_queued")):
        fix = f"start one with `dagmaster {role}`, or a whole platform with `dagmaster up`"
        if count := sum(one.role == role for one in on.alive):
            yield ok(f"{counted(count, role)} running")
        elif waiting := sum(line.count for line in server.rows(on.dsn, query)):
            yield problem(f"no {role} is running; {counted(waiting, work)} waiting", fix)
        else:
            yield warning(f"no {role} is running", fix)
    dead_after_seconds = on.settings.orphan_threshold_sec
    if lost := [one for one in on.instances if dead_after_seconds < one.silent_seconds < HOUR_SECONDS]:
        silent = listed([f"{one.role} {one.host}/{one.pid} for {duration(one.silent_seconds)}" for one in lost])
        fix = "if it was not stopped on purpose, see its log; others take over its work"
        yield warning(f"without a heartbeat: {silent}", fix)
    if others := sorted({one.version for one in on.alive} - {__version__}):
        fix = "finish the deployment: all processes of one platform should have the same version"
        yield warning(f"some processes have version {', '.join(others)}, this command has {__version__}", fix)


def check_handlers(on: Database) -> Judgements:
    """That no worker runs at all is a finding of `instances`."""
    workers = [one for one in on.alive if one.role == "worker"]
    if not workers:
        yield skipped("no worker is running")
        return
    served = {(queue, handler) for worker in workers for queue in worker.queues for handler in worker.handlers}
    queued = server.rows(on.dsn, "doctor_queued")
    waiting = {(line.queue, line.handler): f"{counted(line.count, 'task')} waiting" for line in queued}
    needed = _needed_handlers(on.settings)
    unused = {key: f"needed by {listed(sorted(needed[key]))}" for key in needed.keys() - waiting.keys()}
    for judgement, reasons in ((problem, waiting), (warning, unused)):
        keys = sorted(reasons.keys() - served)
        if missing := listed([f"{handler} on {queue} ({reasons[queue, handler]})" for queue, handler in keys]):
            fix = "start workers that have these handlers installed and serve these queues (WORKER_QUEUE)"
            yield judgement(f"no running worker offers {missing}", fix)
    if served >= waiting.keys() | needed.keys():
        yield ok("the running workers offer all handlers that the workflows need")


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
    worst = max(server.rows(on.dsn, "system_tables"), key=attrgetter("dead_rows"))
    when = "never vacuumed" if worst.vacuumed_at is None else f"last vacuumed {worst.vacuumed_at:%Y-%m-%d %H:%M %Z}"
    observation = f"{worst.dead_rows:,} in {worst.table} next to {worst.live_rows:,} live ones, {when}"
    fix = f"VACUUM ANALYZE dagapp.{worst.table}; check for a long transaction or an autovacuum that is too slow"
    return [judge(worst.dead_rows, observation, fix, warning=max(100_000, worst.live_rows))]


def check_outbox(on: Database) -> Judgements:
    """The transport postgres does not use the outbox; ids that another transport has left in it are harmless."""
    if on.settings.transport == "postgres":
        return [ok("not used: TRANSPORT is postgres")]
    judgements = []
    for queue in server.rows(on.dsn, "outbox_facts"):
        limit, fix = 60.0, f"{queue.error}; workers find the tasks by polling meanwhile"
        if not queue.error:  # ids also wait while all workers are busy
            limit = HOUR_SECONDS
            fix = "start more workers for this queue, or check that orchestrators run with TRANSPORT=servicebus"
        age = duration(queue.oldest_seconds)
        observation = f"{counted(queue.messages, 'task id')} for {queue.queue} not sent for {age}"
        judgements.append(judge(queue.oldest_seconds, observation, fix, warning=limit))
    return judgements or [ok("empty")]


SERVER_CHECKS = named(
    *(check_postgres, check_postgres_settings, check_connections, check_postgis, check_listen, check_clock),
    *(check_transactions, check_rights, check_schema),
)
SCHEMA_CHECKS = named(check_instances, check_handlers, check_dead_rows, check_outbox)
