"""The date of the data is given or read from the file, and otherwise that of publication."""

from datetime import UTC, datetime, timedelta

import pytest

from dagmaster.errors import InvalidRequest
from dagmaster.stac.when import ItemTime, better_of, choose_when, parse_when, time_in_tags, when_of
from dagmaster.timestamps import rfc3339

pytestmark = pytest.mark.requirement("C1")

SUPPLIED = datetime(2025, 6, 1, 12, tzinfo=UTC)


def at(*parts):
    return datetime(*parts, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2024-05-01T10:00:00Z", at(2024, 5, 1, 10), None),
        ("2024-05-01T12:00:00+02:00", at(2024, 5, 1, 10), None),
        ("2024-05-01", at(2024, 5, 1), at(2024, 5, 1, 23, 59, 59)),
        ("2024-02", at(2024, 2, 1), at(2024, 2, 29, 23, 59, 59)),
        ("2023", at(2023, 1, 1), at(2023, 12, 31, 23, 59, 59)),
        ("2023/2024-03", at(2023, 1, 1), at(2024, 3, 31, 23, 59, 59)),
        ("2024-05-01T10:00:00Z/2024-05-02T00:00:00Z", at(2024, 5, 1, 10), at(2024, 5, 2)),
        ("1970/1999", at(1970, 1, 1), at(1999, 12, 31, 23, 59, 59)),
    ],
)
def test_dates_of_a_submitter_are_read(text, start, end):
    assert parse_when(text) == ItemTime(start, end, "given")


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "2024-13",
        "2024-02-30",
        "2024-05-01T10:00:00",
        "0001-01-01T00:00:00Z",
        "1970-01-01T00:00:00Z",
        "9999",
        "2024/2023",
        "0000",
        "",
    ],
)
def test_invalid_dates_of_a_submitter_are_refused(text):
    with pytest.raises(InvalidRequest):
        parse_when(text)


@pytest.mark.parametrize(
    ("tags", "start", "basis"),
    [
        ({"ACQUISITIONDATETIME": "2024-05-01T10:20:30Z"}, at(2024, 5, 1, 10, 20, 30), "acquisition"),
        ({"NITF_IDATIM": "20240501102030"}, at(2024, 5, 1, 10, 20, 30), "acquisition"),
        ({"acquisition_date": "2024-05-01"}, at(2024, 5, 1), "acquisition"),
        ({"EXIF_DateTimeOriginal": "2024:05:01 10:20:30"}, at(2024, 5, 1, 10, 20, 30), "acquisition"),
        ({"TIFFTAG_DATETIME": "2024:05:01 10:20:30"}, at(2024, 5, 1, 10, 20, 30), "file"),
        ({"TIFFTAG_DATETIME": "2024:05:01 10:20:30", "DATE_ACQUIRED": "2023-01-02"}, at(2023, 1, 2), "acquisition"),
        ({"DATE_ACQUIRED": "unknown", "TIFFTAG_DATETIME": "2024-05-01 10:20:30"}, at(2024, 5, 1, 10, 20, 30), "file"),
    ],
)
def test_dates_are_read_from_files(tags, start, basis):
    date = time_in_tags(tags, SUPPLIED)

    assert (date.start, date.basis) == (start, basis)


@pytest.mark.parametrize(
    "text", ["0000:00:00 00:00:00", "1970:01:01 00:00:00", "1900:01:01 00:00:00", "  ", "2099:01:01 00:00:00", "n/a"]
)
def test_placeholder_dates_in_files_are_ignored(text):
    assert time_in_tags({"TIFFTAG_DATETIME": text}, SUPPLIED) is None


def test_a_given_date_takes_precedence_over_the_file_and_the_publication():
    tags = {"TIFFTAG_DATETIME": "2024:05:01 10:20:30"}

    assert choose_when(given="2020", tags=tags, supplied_at=SUPPLIED).basis == "given"
    assert choose_when(given=None, tags=tags, supplied_at=SUPPLIED).basis == "file"
    assert choose_when(given=None, tags=None, supplied_at=SUPPLIED) == ItemTime(SUPPLIED, SUPPLIED, "publication")


def test_a_time_without_its_zone_is_refused():
    with pytest.raises(InvalidRequest, match="zone"):
        ItemTime(datetime(2024, 1, 1))


def test_times_are_written_in_utc():
    assert rfc3339(at(2024, 5, 1, 10)) == "2024-05-01T10:00:00Z"
    assert rfc3339(datetime.fromisoformat("2024-05-01T12:00:00+02:00")) == "2024-05-01T10:00:00Z"
    assert rfc3339(at(2024, 5, 1) + timedelta(microseconds=5)) == "2024-05-01T00:00:00.000005Z"


@pytest.mark.parametrize(
    ("known", "in_file", "chosen"),
    [
        ("given", "given", "in_file"),
        ("given", "acquisition", "known"),
        ("given", "publication", "known"),
        ("acquisition", "given", "in_file"),
        ("acquisition", "acquisition", "in_file"),
        ("acquisition", "file", "known"),
        ("file", "acquisition", "in_file"),
        ("file", "file", "known"),
        ("publication", "file", "in_file"),
        ("publication", "publication", "known"),
    ],
)
def test_the_more_reliable_of_two_dates_is_used(known, in_file, chosen):
    times = {"known": ItemTime(at(2020, 5, 1), None, known), "in_file": ItemTime(at(2024, 5, 1), None, in_file)}

    assert better_of(times["known"], times["in_file"]) == times[chosen]


def test_the_date_can_be_read_from_an_item():
    interval = {"datetime": None, "start_datetime": "2024-05-01T00:00:00Z", "end_datetime": "2024-05-02T00:00:00Z"}

    assert when_of({**interval, "dagmaster:datetime_basis": "file"}) == ItemTime(at(2024, 5, 1), at(2024, 5, 2), "file")
    assert when_of({"datetime": "2024-05-01T00:00:00Z"}) == ItemTime(at(2024, 5, 1), None, "given")
    for wrong in ({}, {"datetime": None}, {"datetime": 7}, {"datetime": "1970-01-01T00:00:00Z"}, {"datetime": "2024"}):
        assert when_of(wrong) is None
