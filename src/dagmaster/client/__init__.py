"""The HTTP API as its clients see it: request and response models, limits, and the Python client.

    from dagmaster.client import Client

    with Client() as client:
        job = client.submit("hello_world", {"name": "Ada"})
        print(client.result(job.job_id))

No server code is imported. `dagmaster.api` declares its routes with the same models, and the command line uses the same
client. The names below are public; they are imported when they are first used, because the command line starts often.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagmaster.client.client import AsyncClient, Client
    from dagmaster.errors import (
        Conflict,
        DagmasterError,
        InvalidRequest,
        InvalidWorkflow,
        JobFailed,
        NotAllowed,
        NotFound,
        Unavailable,
        WaitTimedOut,
    )

__all__ = [
    "AsyncClient",
    "Client",
    "Conflict",
    "DagmasterError",
    "InvalidRequest",
    "InvalidWorkflow",
    "JobFailed",
    "NotAllowed",
    "NotFound",
    "Unavailable",
    "WaitTimedOut",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "dagmaster.client.client" if name.endswith("Client") else "dagmaster.errors"
    return getattr(import_module(module), name)
