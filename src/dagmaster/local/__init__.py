"""A whole platform on one machine, with an embedded PostgreSQL."""
