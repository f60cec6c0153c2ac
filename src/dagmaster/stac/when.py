"""The time of the data. It is never the time of processing.

It is passed by the submitter, or read from a tag of the file; otherwise the time at which the file was supplied is
used, as an interval. `basis` says which of these it is, also in the item (`dagmaster:datetime_basis`).

    given        passed at submission
    acquisition  from a tag of the file with the time of acquisition
    file         from the DateTime tag of the file: when the file was written
    publication  none of these: the file was supplied at that time, and the data are from then or earlier
"""

import calendar
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias, get_args

from dagmaster.errors import InvalidRequest

Basis: TypeAlias = Literal["given", "acquisition", "file", "publication"]

# Placeholders that programs write if they do not know the time.
_SENTINELS = frozenset(
    {datetime(1970, 1, 1, tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC), datetime(1980, 1, 1, tzinfo=UTC)}
)
_ACQUISITION = (
    "acquisitiondatetime",
    "acquisition_datetime",
    "acquisition_date",
    "acquisitiondate",
    "acquisition_time",
    "date_acquired",
    "sensing_time",
    "sensing_start",
    "datetimeoriginal",
    "exif_datetimeoriginal",
    "nitf_idatim",
    "firstlinetime",
)
_PARTS = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d))?)?")
_COLONS = re.compile(r"(\d{4}):(\d\d):(\d\d)[ T](\d\d:\d\d:\d\d(?:\.\d+)?)")
_DIGITS = re.compile(r"(\d{4})(\d\d)(\d\d)T?(\d\d)(\d\d)(\d\d)Z?")


@dataclass(frozen=True, slots=True)
class ItemTime:
    """A moment (`end` is None) or an interval that includes both ends; in UTC."""

    start: datetime
    end: datetime | None = None
    basis: Basis = "given"

    def __post_init__(self) -> None:
        for moment in (self.start, self.end):
            if moment is not None and moment.tzinfo is None:
                raise _refused("a time needs a time zone", hint="add Z for UTC")
            if moment is not None and is_sentinel(moment, is_moment=self.end is None):
                raise _refused(
                    "the time is a placeholder for an unknown time", hint="pass the true time, or an interval"
                )
        if self.end is not None and self.end < self.start:
            raise _refused("an interval ends before it starts")

    @property
    def is_of_one_day(self) -> bool:
        """Whether the interval is known to be shorter than a day: its start is then used where one time is needed."""
        if self.end is None or self.basis == "publication" or is_sentinel(self.start):
            return False
        return self.end - self.start < timedelta(days=1)


def is_sentinel(moment: datetime, *, is_moment: bool = True) -> bool:
    """Whether a time is a placeholder.

    The first second of 1900, 1970 or 1980 may begin an interval, but as a single moment it is a placeholder.
    """
    return not 1000 <= moment.year < 9999 or (is_moment and moment in _SENTINELS)


def choose_when(*, given: str | None, tags: Mapping[str, str] | None, supplied_at: datetime) -> ItemTime:
    """The best time that is known, in the order given, acquisition, file, publication.

    `supplied_at` is the modification time of the source, not the time of processing, so the result is reproducible.
    """
    if given:
        return parse_when(given)
    return time_in_tags(tags or {}, supplied_at) or ItemTime(supplied_at, supplied_at, "publication")


def better_of(earlier: ItemTime, measured: ItemTime) -> ItemTime:
    """The more reliable of two times: that of the previous revision, and that of the new file.

    With the same basis, the newer time counts if it is from the submitter or the sensor. Otherwise the earlier one
    stays: a new time of the file, or of its publication, only means that the file was written again.
    """
    order = get_args(Basis)
    if earlier.basis == measured.basis:
        return measured if measured.basis in ("given", "acquisition") else earlier
    return min(earlier, measured, key=lambda when: order.index(when.basis))


def when_of(properties: Mapping[str, Any]) -> ItemTime | None:
    """The time in the properties of an item; None if it is invalid."""
    start, end = (properties.get(name) for name in ("start_datetime", "end_datetime"))
    basis = properties.get("dagmaster:datetime_basis", "given")
    try:
        begin = datetime.fromisoformat(start or properties["datetime"])
        return (
            ItemTime(begin, datetime.fromisoformat(end) if end else None, basis) if basis in get_args(Basis) else None
        )
    except (InvalidRequest, KeyError, TypeError, ValueError):
        return None


def parse_when(text: str) -> ItemTime:
    """`2024-05-01T10:00:00Z`, a day, a month, a year, or two of these with a slash between.

    >>> parse_when("2024-02").end.isoformat()
    '2024-02-29T23:59:59+00:00'
    """
    first, slash, last = text.strip().partition("/")
    start, end = _span(first), _span(last or first)
    if not slash and start == end and start[0] == start[1]:
        return ItemTime(start[0])
    return ItemTime(start[0], end[1])


def time_in_tags(tags: Mapping[str, str], supplied_at: datetime) -> ItemTime | None:
    """The time in the tags of a file, unless it is a placeholder or after the file was supplied.

    A time without a zone is read as UTC.
    """
    by_name = {name.lower(): text for name, text in tags.items()}
    candidates = [(by_name[name], "acquisition") for name in _ACQUISITION if name in by_name]
    candidates += [(by_name[name], "file") for name in ("tifftag_datetime",) if name in by_name]
    for text, basis in candidates:
        try:
            start, end = _span(_normalised(text))
            when = ItemTime(start, None if start == end else end, "acquisition" if basis == "acquisition" else "file")
        except InvalidRequest:
            continue
        if when.start <= supplied_at + timedelta(days=1):  # a clock without a zone may be up to a day ahead
            return when
    return None


def _span(text: str) -> tuple[datetime, datetime]:
    """The first and the last second of a time, day, month or year."""
    if parts := _PARTS.fullmatch(text):
        year, month, day = (int(part) if part else None for part in parts.groups())
        return _day(year or 0, month or 1, day or 1)[0], _day(
            year or 0, month or 12, day or _last_day(year or 0, month or 12)
        )[1]
    try:
        moment = datetime.fromisoformat(text.replace("z", "Z"))
    except ValueError:
        raise _refused(
            f"'{text[:40]}' is not a time", hint="write 2024-05-01T10:00:00Z, 2024-05-01, or start/end"
        ) from None
    if moment.tzinfo is None:
        raise _refused("a time needs a time zone", hint="add Z for UTC")
    return moment.astimezone(UTC), moment.astimezone(UTC)


def _day(year: int, month: int, day: int) -> tuple[datetime, datetime]:
    try:
        start = datetime(year, month, day, tzinfo=UTC)
        return start, start + timedelta(hours=23, minutes=59, seconds=59)
    except (ValueError, OverflowError):
        raise _refused(f"there is no day {year:04}-{month:02}-{day:02}") from None


def _last_day(year: int, month: int) -> int:
    return calendar.monthrange(year, month)[1] if 1 <= month <= 12 and year else 31


def _normalised(text: str) -> str:
    """Tags come in the styles of TIFF, NITF and ISO 8601, mostly without a zone."""
    text = text.strip().strip("\"'")
    if colons := _COLONS.fullmatch(text):
        text = "{}-{}-{}T{}".format(*colons.groups())
    elif digits := _DIGITS.fullmatch(text):
        text = "{}-{}-{}T{}:{}:{}".format(*digits.groups())
    has_time = "T" in text or " " in text
    has_zone = bool(re.search(r"([zZ]|[+-]\d\d:?\d\d)$", text)) if has_time else True
    return text if has_zone else f"{text}Z"


def _refused(message: str, *, hint: str | None = None) -> InvalidRequest:
    return InvalidRequest(message, code="stac.datetime", hint=hint)
