"""Transports carry the news of dispatched tasks to workers. The lease is always the task row in PostgreSQL."""
