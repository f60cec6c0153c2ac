"""A moment as people write it: a time, a day, or how long ago it was."""

import re
from datetime import UTC, datetime, timedelta

from dagmaster.errors import InvalidRequest

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(s|min|m|h|d|w)", re.ASCII)
_AGE = re.compile(rf"(?:{_PART.pattern}\s*)+", re.ASCII)
_HINT = (
    "use a time such as 2026-11-16T14:30+01:00, a day such as 2026-11-16, or an age such as 90s, 15min, 2h, 3d or 1w"
)


def parse_moment(text: str, name: str, *, now: datetime | None = None, requires_zone: bool = False) -> datetime:
    """The moment in UTC. A time without a zone is in the local time zone, unless one is required.

    >>> parse_moment("1h30min", "since", now=datetime(2026, 11, 16, 12, tzinfo=UTC)).isoformat()
    '2026-11-16T10:30:00+00:00'
    """
    text = text.strip()
    try:
        if _AGE.fullmatch(text):
            seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
            return (now or datetime.now(UTC)) - timedelta(seconds=seconds)
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None and requires_zone:
            hint = "add the time zone, for example Z for UTC"
            raise InvalidRequest(f"{name} '{text[:60]}' has no time zone", code="request.invalid", hint=hint)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{name} '{text[:60]}' is neither a time nor an age", code="request.invalid", hint=_HINT
        ) from None
