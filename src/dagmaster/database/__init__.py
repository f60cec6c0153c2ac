"""PostgreSQL: the tables, every SQL statement, and the private cluster for one machine."""

OLDEST_MAJOR = 15  # of PostgreSQL
