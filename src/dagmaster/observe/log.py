"""Logging: structured events to standard error, as text for people or as JSON for programs. Secrets are removed."""

import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import structlog

from dagmaster.errors import Unavailable
from dagmaster.observe.redaction import redact_named


def _redact_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        event[name] = redact_named(name, value)
    return event


_contexts: list[Callable[[], Mapping[str, str]]] = []


def add_context(read: Callable[[], Mapping[str, str]]) -> None:
    """Add what `read` returns, such as the ids of the current trace, to every event from now on. An earlier function is
    replaced."""
    _contexts[:] = [read]


def _add_contexts(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for read in _contexts:
        for name, value in read().items():
            event.setdefault(name, value)
    return event


class _LibraryHandler(logging.Handler):
    """Passes records of libraries, which use the standard logging, on to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        get(record.name).log(level, record.getMessage(), exc_info=record.exc_info)


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
            _add_contexts,
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
    root = logging.getLogger()
    if not any(isinstance(handler, _LibraryHandler) for handler in root.handlers):
        root.addHandler(_LibraryHandler(logging.WARNING))


def get(name: str) -> Any:
    return structlog.get_logger(role=name)


def failure(logger: Any, event: str, error: Exception, **facts: Any) -> None:
    """Log a failure after which a loop continues. An outage, such as a database that does not respond, is a warning
    with its text. Any other failure is a bug: an error with its traceback."""
    if isinstance(error, Unavailable | OSError):
        logger.warning(event, error=str(error) or type(error).__name__, **facts)
    else:
        logger.error(event, exc_info=error, **facts)
