"""Remove secrets from text and from values before they are logged, stored or shown.

A secret is recognised by its name (`password=…`, `"api_key": "…"`, `Authorization: …`), by its position
(`://user:…@host`), or by its own form (a JWT, a PEM, or a key or session of dagmaster: `dgm_ID_…`, `dgs_ID_…`). Its
value ends with its quotes or brackets, or at white space if it has none. In doubt, more is hidden. Each character is
examined a bounded number of times, whatever the text.

The secrets of this process's own settings are hidden wherever they stand: see `protect`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from uuid import UUID

HIDDEN = "***"
MIN_PROTECTED_LENGTH: Final = 12  # a shorter value may be an ordinary word

_KEYS = (
    "access",
    "account",
    "api",
    "encryption",
    "functions",
    "master",
    "private",
    "secret",
    "shared",
    "signing",
    "storage",
    "subscription",
)
_KEY = "|".join(f"(?<={kind}{joint})" for kind in _KEYS for joint in ("", "[-_ ]"))
# How the name of a secret ends, by the letters that are searched first: most texts contain none of them.
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
# What separates a name from its value: in prose, JSON inside JSON, URLs inside URLs, pairs and commands.
_SIGN = (
    r"""\d{0,3}(?:(?P<close>\\*+["'])?[ \t]*+"""
    r"""(?P<sign>:=|=>|={1,3}|:|%(?:25)*+3[AD]|,(?=[ \t]*+[bru]?\\*+["']))[ \t]*+|(?P<gap>[ \t]++))"""
)
_SUSPECTS = {
    hint: re.compile(pattern, re.IGNORECASE)
    for hint, pattern in {
        **{hint: rf"(?P<name>{name}){_SIGN}" for hint, name in _NAMES.items()},
        "bearer": r"(?P<bearer>(?<![a-z])bearer[ \t]++)",
        "eyj": r"(?P<jwt>(?<![\w-])eyJ[\w-]{8,}+\.[\w-]++(?:\.[\w-]*+)?)",
        "dgm_": r"(?P<key>dgm_[a-z0-9]{1,64}+_)",
        "dgs_": r"(?P<key>dgs_[a-z0-9]{1,64}+_)",
        "-----begin": r"(?P<pem>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)",
    }.items()
}
_HINTS = re.compile("|".join(_SUSPECTS))
_SECRET_NAME = re.compile(rf"(?:{'|'.join(_NAMES.values())})\d{{0,3}}\Z", re.IGNORECASE)
# What may follow a closing quote.
_AFTER = r"""(?=[\s,;:)\]}>&|<.?!\\"'`]|\Z)"""
_CLOSES = re.compile(_AFTER)
_CLOSED = re.compile(r"""(?=[,;:)\]}>]*+(?:[\s"'\\]|\Z))""")
# A repeated group with alternatives is not possessive: early releases of Python 3.11 keep what an alternative consumed
# before it failed. The group stands at the end of its pattern, so it is never tried twice.
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
_KEY_SECRET = re.compile(r"[\w-]*+")
_CAPITALS = re.compile("[A-Z]+")
_END_OF_USER = re.compile("[:/?#@]")
_QUERY = re.compile(r"\?[\w.%-]{1,60}=")
_PORT = re.compile(r"\d{1,5}[/?#]")
_LOOK_BACK_LENGTH = 80
_MAX_DEPTH = 20


class _ProtectedValues:
    def __init__(self) -> None:
        self._values: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def add(self, secrets: Iterable[str]) -> None:
        added = {secret for secret in secrets if len(secret) >= MIN_PROTECTED_LENGTH} - self._values
        if not added:
            return
        self._values |= added
        forms = {form for secret in self._values for form in (secret, quote(secret, safe=""))}
        longest_first = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def hide_in(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)


_protected = _ProtectedValues()


def protect(secrets: Iterable[str]) -> None:
    """From now on, hide these values in all texts of this process, also where no name or format marks them as secrets:
    a library or another server may repeat them. Short ones are left out."""
    _protected.add(secrets)


def redact(text: str) -> str:
    """The text without passwords in URLs, signatures, tokens and keys."""
    text = _protected.hide_in(text)
    if "://" in text:
        text = _URLS.sub(_without_passwords, text)
    lowered = text.lower() if text.isascii() else _CAPITALS.sub(lambda match: match[0].lower(), text)
    return "".join(_without_values(text, lowered)) if _HINTS.search(lowered) else text


def redact_value(value: Any, depth: int = 0) -> Any:
    """A value of any shape without secrets: neither in texts nor under the name of a secret, at any depth."""
    if isinstance(value, str):
        return redact(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {
            redact(key) if isinstance(key, str) else key: redact_named(str(key), part, depth + 1)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_value(part, depth + 1) for part in value]
    return redact(str(value) if isinstance(value, UUID | date | PurePath) else repr(value))


def redact_named(name: str, value: Any, depth: int = 0) -> Any:
    """A named value without secrets. None and booleans stay: whether a secret is set is not a secret."""
    if value is None or isinstance(value, bool) or not is_secret_name(name):
        return redact_value(value, depth)
    return HIDDEN


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _without_passwords(match: re.Match[str]) -> str:
    """Text that contains one or more URLs, without their passwords. User names stay."""
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
        # There is no password: the part before @ is a token in a web URL, and a user name elsewhere.
        return HIDDEN + url[at:] if is_web else url
    if _PORT.match(url, end_of_user.end()) and (is_web or _QUERY.search(url, 0, at)):
        return url
    query = _QUERY.search(url, at)
    return f"{url[: end_of_user.end()]}{HIDDEN}{url[url.rfind('@', 0, query.start() if query else len(url)) :]}"


def _without_values(text: str, lowered: str) -> Iterator[str]:
    hidden = _EMPTY
    for hint in _HINTS.finditer(lowered):
        # A value in quotes or brackets is hidden as a whole. A bare word may be the name of the next secret.
        if hint.start() < hidden.end and not hidden.is_word:
            continue
        match = _SUSPECTS[hint[0]].match(text, hint.start())
        value = _value_of(text, match, hidden.end) if match else _EMPTY
        if value.end <= value.start or value.end < hidden.end:
            continue
        if value.start > hidden.end or not hidden.end:
            yield text[hidden.end : value.start]
            yield HIDDEN
        hidden = value
    yield text[hidden.end :]


class _Value(NamedTuple):
    """The span to hide. It is empty if it ends where it starts."""

    start: int
    end: int
    is_word: bool = False


_EMPTY = _Value(0, 0)


def _value_of(text: str, match: re.Match[str], hidden_to: int) -> _Value:
    start = match.end()
    match match.lastgroup:
        case "jwt":
            return _Value(*match.span(), is_word=True)
        case "key":  # the id stays: it identifies the key to revoke
            return _Value(start, _end(_KEY_SECRET, text, start), is_word=True)
        case "pem":
            end = text.find("-----END", start)
            return _Value(start, len(text) if end < 0 else end)
        case "bearer":
            token = _TOKEN.match(text, start)
            # Letters alone are an ordinary word.
            return _word(text, start, start) if token and not token[0].isalpha() else _EMPTY
        case "gap" if not _directly_before(_FLAG, match):
            return _EMPTY
        case "sign" if match["sign"] == "," and not (_directly_before(_PAIR, match) or _directly_before(_FLAG, match)):
            return _EMPTY
    if opening := _OPENING.match(text, start):
        end = _end_of_quoted(text, opening.end(), opening["quote"], len(opening["slashes"]))
        return _Value(opening.end(), end)
    if text[start : start + 1] in {"[", "{", "("}:
        end = _end_of_brackets(text, start)
        return _Value(start, end) if end < hidden_to or _CLOSED.match(text, end) else _word(text, start, end)
    if match["name"].lower().startswith(("authorization", "cookie")):
        # The value has several words: it ends with the line, or with the quotes around the whole header.
        around = _directly_before(_QUOTED_HEADER, match)
        if around is None:
            return _Value(start, _end(_LINE, text, start))
        return _Value(start, _end_of_quoted(text, start, around["quote"], len(around["slashes"])))
    return _word(text, start, start) if start >= hidden_to else _EMPTY


def _directly_before(pattern: re.Pattern[str], match: re.Match[str]) -> re.Match[str] | None:
    """The match of a pattern that ends directly before the name, if there is one."""
    return pattern.search(match.string[max(0, match.start() - _LOOK_BACK_LENGTH) : match.start()])


def _word(text: str, start: int, search_from: int) -> _Value:
    """A value without quotes, without the punctuation that closes the sentence or the call around it."""
    end = _end(_WORD, text, search_from)
    return _Value(start, start + len(text[start:end].rstrip(",)]}")), is_word=True)


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start


def _end_of_quoted(text: str, start: int, quote: str, slashes: int) -> int:
    """The end of a quoted text whose opening quote follows this many backslashes: JSON inside JSON has more of them.

    If a quote follows n backslashes, an escaped backslash in the same text is written as 2n + 2 of them. The remainder
    of a division by 2n + 2 therefore distinguishes an escaped quote (`\\"`) from a closing one (`\\\\"`).
    """
    position = start
    while (at := text.find(quote, position)) >= 0:
        count = _slashes_before(text, at, position)
        position = at + 1
        if count < slashes:  # the surrounding text has ended
            return at - count
        if count % (2 * slashes + 2) != slashes or not _CLOSES.match(text, position):
            continue
        if slashes or text[position : position + 1] != quote:
            return at - slashes
        position += 1  # doubled, as in SQL
    return len(text)


def _slashes_before(text: str, end: int, start: int) -> int:
    return end - start - len(text[start:end].rstrip("\\"))


def _end_of_brackets(text: str, start: int) -> int:
    depth, position = 0, start
    while match := _BRACKETS.search(text, position):
        if quote := match["quote"]:
            slashes = _slashes_before(text, match.start(), position)
            position = _end_of_quoted(text, match.end(), quote, slashes) + slashes + 1
            continue
        position = match.end()
        depth += 1 if match["open"] else -1
        if depth == 0:
            return position
    return len(text)
