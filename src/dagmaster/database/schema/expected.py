"""The schema that this software expects, for processes that use it. SQLAlchemy, more than 20 MB, is not loaded."""

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources

from dagmaster.database.queries import all_queries
from dagmaster.database.schema.records import RECORDS
from dagmaster.records import SCHEMA

_CALL = re.compile(rf"\b{SCHEMA}\.(\w+)\(")


@cache
def expected_fingerprint() -> str:
    """The fingerprint from a file; `make docs` writes it."""
    return resources.files("dagmaster.database.schema").joinpath("fingerprint.txt").read_text().strip()


def missing_parts(deployed: Iterable[str]) -> list[str]:
    """The columns (`dag_jobs.status`) and functions (`clock()`) that this software needs and a schema does not have."""
    return sorted(needed_parts().difference(deployed))


@cache
def needed_parts() -> frozenset[str]:
    """Every column, and each function that a statement calls."""
    columns = {f"{record.table.name}.{name}" for record in RECORDS for name in record.model_fields}
    functions = {f"{name}()" for text in all_queries().values() for name in _CALL.findall(text)}
    return frozenset(columns | functions)
