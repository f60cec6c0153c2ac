"""PostgreSQL: connections, the tables, and every SQL statement."""

OLDEST_MAJOR = 15  # the oldest supported major version of PostgreSQL
