"""PostgreSQL: the tables, every SQL statement, and the private cluster for one machine."""
