"""Servers log at their start that authentication is disabled, and warn if other machines can reach them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from dagmaster.cli.up import _announce
from dagmaster.observe import log
from dagmaster.roles import serving
from dagmaster.roles.orchestrator import orchestrator_role
from dagmaster.settings import Settings

pytestmark = pytest.mark.requirement("X1")

DISABLED = "authentication is disabled: only this machine can reach the platform, and every caller is an administrator"
Notice = tuple[str, str]


@pytest.fixture(autouse=True)
def _logs_information() -> None:
    """Set the log level, because another test may have set a higher one."""
    log.configure("info", "text")


def notices(lines: list[Any]) -> list[Notice]:
    return [(line["log_level"], line["event"]) for line in lines if "authentication is disabled" in line["event"]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [("info", DISABLED)]),
        ({"AUTH_ENABLED": True}, []),
        ({"AUTH_ENABLED": True, "API_INSECURE": True}, []),
        (
            {"API_INSECURE": True},
            [
                (
                    "warning",
                    "authentication is disabled and API_INSECURE=true: others can reach the platform, and need no key",
                )
            ],
        ),
    ],
    ids=str,
)
async def test_the_api_logs_that_authentication_is_disabled(
    database: str, options: dict[str, Any], expected: list[Notice]
):
    with capture_logs() as lines:
        async with orchestrator_role(Settings(API_PORT=0, **options), database, None):
            pass

    assert notices(lines) == expected


@pytest.mark.parametrize(("is_insecure", "level"), [(False, "info"), (True, "warning")])
async def test_the_map_server_logs_that_authentication_is_disabled(
    monkeypatch: pytest.MonkeyPatch, is_insecure: bool, level: str
):
    async def end_at_once(_server: Any) -> None:
        pass

    monkeypatch.setattr(serving, "run_until_stopped", end_at_once)

    with capture_logs() as lines:
        await serving.serve_maps(Settings(SERVING_PORT=0, SERVING_INSECURE=is_insecure), "postgresql://nowhere", None)

    ((logged_level, text),) = notices(lines)
    assert logged_level == level
    assert ("SERVING_INSECURE=true" in text) is is_insecure


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [f"{DISABLED}\n"]),
        ({"AUTH_ENABLED": True}, []),
        (
            {"API_INSECURE": True, "SERVING_INSECURE": True},
            [
                "authentication is disabled and API_INSECURE=true and SERVING_INSECURE=true: others can reach the "
                "platform, and need no key\n"
            ],
        ),
    ],
    ids=str,
)
def test_up_prints_that_authentication_is_disabled(options: dict[str, Any], expected: list[str]):
    lines: list[str] = []
    state: Any = SimpleNamespace(json=False, say=lines.append, console=SimpleNamespace(print=lambda _table: None))
    local: Any = SimpleNamespace(
        settings=Settings(**options),
        folder=Path("data"),
        dsn="postgresql://nowhere",
        cluster=None,
        children=[],
        ready_seconds=1.0,
        api_url=None,
        ui_url=None,
        maps_url=None,
        gateway_url=None,
    )

    _announce(state, local)

    assert [line for line in lines if "authentication" in line] == expected
