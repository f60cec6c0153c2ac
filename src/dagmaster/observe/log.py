"""Logging: structured facts, worded for a person on a terminal or as JSON for a machine, and never a secret.

What is secret is told by its name (`password=…`, `"api_key": "…"`, `Authorization: …`) or by its place (`://user:…@host`).
Where a value ends is told by its quotes or brackets; without any it ends at white space. In doubt more is hidden, not less.
Each character is looked at a bounded number of times, whatever the text.
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from datetime import date
from functools import lru_cache
from pathlib import PurePath
from typing import Any, NamedTuple
from uuid import UUID

import structlog

HIDDEN = "***"

_KEYS = ("access", "account", "api", "encryption", "functions", "master", "private", "secret", "shared", "signing",
         "storage", "subscription")  # fmt: skip
_KEY = "|".join(f"(?<={kind}{joint})" for kind in _KEYS for joint in ("", "[-_ ]"))
# How the name of a secret ends, by the letters that are looked for first, to pass over everything else at a glance.
# Claim tokens are secret, idempotency keys are not.
_NAMES = {
    "pass": r"passw(?:or)?ds?|passphrase|(?<=[_-])pass",
    "pwd": r"(?<![a-z])pwd",
    "secret": r"secrets?",
    "token": r"token",
    "credential": r"credentials?",
    "auth": r"authorization",
    "cookie": r"cookies?",
    "key": rf"(?:{_KEY})key(?:[-_]?id)?",
    "sig": r"(?:(?<=[-_])|(?<=access))signature"
    r"""|(?<![a-z])signature(?=[ \t]?=|%|\\*+["'])|(?:(?<![a-z])|(?<=%3f))sig""",
}
# What follows a name before its value, in words, in JSON inside JSON, in URLs inside URLs, in pairs and in commands.
_SIGN = (
    r"""\d{0,3}(?:(?P<close>\\*+["'])?[ \t]*+"""
    r"""(?P<sign>:=|=>|={1,3}|:|%(?:25)*+3[AD]|,(?=[ \t]*+[bru]?\\*+["']))[ \t]*+|(?P<gap>[ \t]++))"""
)
_SUSPECTS = {
    trace: re.compile(pattern, re.IGNORECASE)
    for trace, pattern in {
        **{trace: rf"(?P<name>{name}){_SIGN}" for trace, name in _NAMES.items()},
        "bearer": r"(?P<bearer>(?<![a-z])bearer[ \t]++)",
        "eyj": r"(?P<jwt>(?<![\w-])eyJ[\w-]{8,}+\.[\w-]++(?:\.[\w-]*+)?)",
        "-----begin": r"(?P<pem>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)",
    }.items()
}
_TRACES = re.compile("|".join(_SUSPECTS))
_SECRET_NAME = re.compile(rf"(?:{'|'.join(_NAMES.values())})\d{{0,3}}\Z", re.IGNORECASE)
# What may follow a quote that closes something.
_AFTER = r"""(?=[\s,;:)\]}>&|<.?!\\"'`]|\Z)"""
_CLOSES = re.compile(_AFTER)
_CLOSED = re.compile(r"""(?=[,;:)\]}>]*+(?:[\s"'\\]|\Z))""")
# Where several ways may repeat, the repetition is not possessive: early 3.11 would keep what a way took before it failed. Nothing
# follows it, so nothing is tried twice either.
_URLS = re.compile(rf"""://(?:[^\s"'<>`]++|'(?!{_AFTER}))*""")
_WORD = re.compile(
    r"""(?:[^\s&;"'\\]++"""
    r"""|[&;](?![ \t]?[\w.%-]{1,60}(?:=|%3D))"""  # the next parameter
    rf"""|\\++(?:(?!["'])|["'](?!{_AFTER}))"""
    rf"""|["'](?!{_AFTER}))*""",
    re.IGNORECASE,
)
_LINE = re.compile(r"[^\r\n]*+")
_OPENING = re.compile(r"""[bruf]{0,2}(?P<slashes>\\*+)(?P<quote>["'])""", re.IGNORECASE)
_BRACKETS = re.compile(r"""(?P<open>[\[({])|(?P<close>[})\]])|(?P<quote>["'])""")
_FLAG = re.compile(r"--[\w-]{0,60}\Z")
_PAIR = re.compile(r"""\(b?\\*["'][\w.-]{0,60}\Z""")
_QUOTED_HEADER = re.compile(r"""(?P<slashes>\\*+)(?P<quote>["'])[\w-]{0,20}\Z""")
_TOKEN = re.compile(r"[\w.~+/=-]{8,}+")
_CAPITALS = re.compile("[A-Z]+")
_END_OF_USER = re.compile("[:/?#@]")
_QUERY = re.compile(r"\?[\w.%-]{1,60}=")
_PORT = re.compile(r"\d{1,5}[/?#]")
_LOOK_BACK = 80
_DEEPEST = 20


def redact(text: str) -> str:
    """The text without passwords in URLs, signatures, tokens and keys."""
    if "://" in text:
        text = _URLS.sub(_without_passwords, text)
    lowered = text.lower() if text.isascii() else _CAPITALS.sub(lambda found: found[0].lower(), text)
    return "".join(_without_values(text, lowered)) if _TRACES.search(lowered) else text


def redact_value(value: Any, depth: int = 0) -> Any:
    """A fact of any shape without secrets: neither in texts nor under a secret's name, however deep."""
    if isinstance(value, str):
        return redact(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {key: redact_named(str(key), part, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_value(part, depth + 1) for part in value]
    return redact(str(value) if isinstance(value, UUID | date | PurePath) else repr(value))


def redact_named(name: str, value: Any, depth: int = 0) -> Any:
    """A fact by its name. Whether there is a secret at all may be told."""
    if value is None or isinstance(value, bool) or not is_secret_name(name):
        return redact_value(value, depth)
    return HIDDEN


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _without_passwords(match: re.Match[str]) -> str:
    """A run of text with one URL or several: users keep their names and lose their passwords."""
    _, *urls = match[0].split("://")
    before = [match.string[max(0, match.start() - 8) : match.start()], *urls]
    return "".join(f"://{_without_password(url, before[place])}" for place, url in enumerate(urls))


def _without_password(url: str, before: str) -> str:
    """`url` is what follows `://`. A password may hold @, : and /, though it should not."""
    at = url.find("@")
    end_of_user = _END_OF_USER.search(url)
    if at < 0 or end_of_user is None or end_of_user[0] in "/?#":
        return url
    is_web = before.lower().endswith(("http", "https"))
    if end_of_user[0] == "@":
        # Alone it is a token on the web, and elsewhere just a user.
        return HIDDEN + url[at:] if is_web else url
    if _PORT.match(url, end_of_user.end()) and (is_web or _QUERY.search(url, 0, at)):
        return url
    query = _QUERY.search(url, at)
    return f"{url[: end_of_user.end()]}{HIDDEN}{url[url.rfind('@', 0, query.start() if query else len(url)) :]}"


def _without_values(text: str, lowered: str) -> Iterator[str]:
    hidden = _NOTHING
    for trace in _TRACES.finditer(lowered):
        # What stands in quotes or brackets is hidden whole. A word may be the name of the next secret.
        if trace.start() < hidden.end and not hidden.is_word:
            continue
        match = _SUSPECTS[trace[0]].match(text, trace.start())
        value = _value_of(text, match, hidden.end) if match else _NOTHING
        if value.end <= value.start or value.end < hidden.end:
            continue
        if value.start > hidden.end or not hidden.end:
            yield text[hidden.end : value.start]
            yield HIDDEN
        hidden = value
    yield text[hidden.end :]


class _Value(NamedTuple):
    """From where to where there is something to hide. Nothing, where it ends where it starts."""

    start: int
    end: int
    is_word: bool = False


_NOTHING = _Value(0, 0)


def _value_of(text: str, match: re.Match[str], hidden_to: int) -> _Value:
    start = match.end()
    match match.lastgroup:
        case "jwt":
            return _Value(*match.span(), is_word=True)
        case "pem":
            end = text.find("-----END", start)
            return _Value(start, len(text) if end < 0 else end)
        case "bearer":
            token = _TOKEN.match(text, start)
            # Letters alone are a word.
            return _word(text, start, start) if token and not token[0].isalpha() else _NOTHING
        case "gap" if not _follows(_FLAG, match):
            return _NOTHING
        case "sign" if match["sign"] == "," and not (_follows(_PAIR, match) or _follows(_FLAG, match)):
            return _NOTHING
    if opening := _OPENING.match(text, start):
        end = _end_of_quoted(text, opening.end(), opening["quote"], len(opening["slashes"]))
        return _Value(opening.end(), end)
    if text[start : start + 1] in {"[", "{", "("}:
        end = _end_of_brackets(text, start)
        return _Value(start, end) if end < hidden_to or _CLOSED.match(text, end) else _word(text, start, end)
    if match["name"].lower().startswith(("authorization", "cookie")):
        # Several words, up to the end of the line or of the quotes around the whole header.
        around = _follows(_QUOTED_HEADER, match)
        if around is None:
            return _Value(start, _end(_LINE, text, start))
        return _Value(start, _end_of_quoted(text, start, around["quote"], len(around["slashes"])))
    return _word(text, start, start) if start >= hidden_to else _NOTHING


def _follows(pattern: re.Pattern[str], match: re.Match[str]) -> re.Match[str] | None:
    """Whether what stands directly before a name is such."""
    return pattern.search(match.string[max(0, match.start() - _LOOK_BACK) : match.start()])


def _word(text: str, start: int, go_on: int) -> _Value:
    """What closes the sentence or the call around it is no part of it."""
    end = _end(_WORD, text, go_on)
    return _Value(start, start + len(text[start:end].rstrip(",)]}")), is_word=True)


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start


def _end_of_quoted(text: str, start: int, quote: str, slashes: int) -> int:
    """Where the quoted text ends whose opening quote has so many backslashes: JSON inside JSON has more of them.

    A backslash of such a text takes twice as many, and one more, than its quotes do, which tells `\\"` from `\\\\"`.
    """
    position = start
    while (found := text.find(quote, position)) >= 0:
        count = _slashes_before(text, found, position)
        position = found + 1
        if count < slashes:  # what is around it has ended
            return found - count
        if count % (2 * slashes + 2) != slashes or not _CLOSES.match(text, position):
            continue
        if slashes or text[position : position + 1] != quote:
            return found - slashes
        position += 1  # doubled, as in SQL
    return len(text)


def _slashes_before(text: str, end: int, start: int) -> int:
    return end - start - len(text[start:end].rstrip("\\"))


def _end_of_brackets(text: str, start: int) -> int:
    depth, position = 0, start
    while found := _BRACKETS.search(text, position):
        if quote := found["quote"]:
            slashes = _slashes_before(text, found.start(), position)
            position = _end_of_quoted(text, found.end(), quote, slashes) + slashes + 1
            continue
        position = found.end()
        depth += 1 if found["open"] else -1
        if depth == 0:
            return position
    return len(text)


def _redact_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        event[name] = redact_named(name, value)
    return event


class _Others(logging.Handler):
    """What libraries say in the standard way, told in ours."""

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
    if not any(isinstance(handler, _Others) for handler in root.handlers):
        root.addHandler(_Others(logging.WARNING))


def get(name: str) -> Any:
    return structlog.get_logger(role=name)
