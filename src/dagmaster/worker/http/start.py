"""Start a worker over HTTP: find the platform, check the key, apply the limits of both."""

import asyncio
import socket

from dagmaster import __version__
from dagmaster.client.connection import ApiConnection, is_temporary
from dagmaster.client.credentials import key_for
from dagmaster.client.models.worker import PROTOCOL, StartedWorker
from dagmaster.errors import InvalidRequest, NotAllowed, NotFound, Unavailable
from dagmaster.observe import log
from dagmaster.settings import Settings
from dagmaster.worker.http.requests import parsed

# The server announces tasks, so the worker's own polls are only a fallback.
POLL_SECONDS = 120.0
RETRY_SECONDS = 60.0
RENEWALS_PER_LEASE = 4
_PAUSE_SECONDS = (0.2, 5.0)
_log = log.get("worker")


def connect(settings: Settings) -> ApiConnection:
    """The connection to the API that the settings name. Nothing is sent yet."""
    url = settings.dag_callback_url
    if url is None:
        raise InvalidRequest("DAG_CALLBACK_URL is not set", code="settings.invalid")
    return ApiConnection(lambda: url, find_key=lambda: key_for(settings, server=url))


async def start(connection: ApiConnection, *, retry_seconds: float = RETRY_SECONDS) -> StartedWorker:
    """Register the worker. Waits for a while if the platform is unavailable; other errors are raised at once."""
    body = {"host": socket.gethostname()[:200], "software_version": __version__, "protocol": PROTOCOL}
    loop = asyncio.get_running_loop()
    deadline, is_logged = loop.time() + retry_seconds, False
    seconds, longest = _PAUSE_SECONDS
    while True:
        try:
            response = await connection.request("POST", "/worker/start", body=body)
            return parsed(StartedWorker, response.content)
        except NotFound as error:
            raise Unavailable(
                f"{connection.url} has no API for workers without database access",
                code="worker.no-api",
                hint="check DAG_CALLBACK_URL; if the platform is older than this worker, which is version "
                f"{__version__}, upgrade the platform first",
            ) from error
        except NotAllowed as error:
            raise _refused(error) from None
        except Unavailable as error:
            if not is_temporary(error) or loop.time() + seconds > deadline:
                raise
            if not is_logged:
                _log.warning("waiting for the platform", error=error.message)
                is_logged = True
        await asyncio.sleep(seconds)
        seconds = min(longest, 2 * seconds)


def _refused(error: NotAllowed) -> NotAllowed:
    """The error with a hint for workers, which have no option --key."""
    hint = "set DAGMASTER_KEY to a key of the scope worker, or run `dagmaster login --server URL` with one; an "
    hint += "administrator creates it: dagmaster keys create NAME --scope worker"
    return NotAllowed(f"the platform refuses this worker: {error.message}", code=error.code, hint=hint, **error.facts)


def limited_settings(settings: Settings, started: StartedWorker) -> Settings:
    """The settings of the worker within the limits of the platform and of the key."""
    lease_seconds = min(settings.task_lease_sec, started.lease_seconds)
    changes = {
        "worker_queue": queues_of(settings, started),
        "worker_poll_interval": max(settings.worker_poll_interval, POLL_SECONDS),
        "task_lease_sec": lease_seconds,
        "lease_renew_sec": min(settings.lease_renew_sec, lease_seconds / RENEWALS_PER_LEASE),
    }
    return settings.model_copy(update=changes)


def queues_of(settings: Settings, started: StartedWorker) -> tuple[str, ...]:
    """The queues of the key, or those of the settings if the key allows them."""
    if started.queues is None:
        return settings.worker_queue
    if "worker_queue" not in settings.model_fields_set:
        return tuple(started.queues)
    if foreign := sorted(set(settings.worker_queue) - set(started.queues)):
        raise NotAllowed(
            f"the key '{started.caller}' does not allow tasks of {', '.join(foreign)}",
            code="worker.queue-not-allowed",
            hint=f"set WORKER_QUEUE to queues of the key ({', '.join(started.queues)}), or unset it",
        )
    return settings.worker_queue
