"""Logging: structured facts, worded for a person on a terminal or as JSON for a machine."""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

# Bounded everywhere, so that a long line of letters costs no more than its length.
_SECRETS = re.compile(
    r"""(?P<scheme>(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://[^\s:/@]{1,200}:)[^\s@]{1,500}@"""
    r"""|(?P<key>(?<![a-z])(?:sig|password|pwd|X-Amz-Signature|X-Amz-Credential|SharedAccessKey|AccountKey|Authorization)"""
    r"""["']?\s*[=:]\s*["']?(?:(?:Bearer|Basic)\s+)?)[^\s&;"']+""",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """The text without passwords in URLs, SAS signatures and keys."""
    return _SECRETS.sub(lambda m: f"{m['scheme']}***@" if m["scheme"] else f"{m['key']}***", text)


def _redact_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = redact(value)
    return event


def configure(level: str = "info", style: str = "text") -> None:
    """Set up logging for this process: everything to standard error."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _redact_event,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def get(name: str) -> Any:
    return structlog.get_logger(role=name)
