"""The schema that this software expects, for processes that use it. SQLAlchemy, more than 20 MB, is not loaded."""

from functools import cache
from importlib import resources

from dagmaster.database.schema.records import RECORDS


@cache
def expected_fingerprint() -> str:
    """The fingerprint from a file; `make docs` writes it."""
    return resources.files("dagmaster.database.schema").joinpath("fingerprint.txt").read_text().strip()


@cache
def expected_columns() -> frozenset[tuple[str, str]]:
    """Every column, with its table."""
    return frozenset((record.table.name, name) for record in RECORDS for name in record.model_fields)
