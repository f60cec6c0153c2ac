"""Times as text, as STAC documents and logs write them."""

from datetime import UTC, datetime


def rfc3339(moment: datetime) -> str:
    """The time in UTC: `2026-11-16T10:30:00Z`."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
