"""Every record that has a table, in the order in which the tables are created."""

from dagmaster.assets import model as assets
from dagmaster.callbacks import model as callbacks
from dagmaster.jobs import model as jobs
from dagmaster.records import Record

RECORDS: tuple[type[Record], ...] = (*jobs.RECORDS, *assets.RECORDS, *callbacks.RECORDS)
