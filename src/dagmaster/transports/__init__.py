"""Transports announce queued tasks to workers. The lease is always the task row in PostgreSQL."""
