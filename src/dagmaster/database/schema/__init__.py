"""The schema: tables from the records, comparison with a live database, deployment and the triggers that guard
states."""
