"""Transports announce queued tasks to workers. A task itself is always claimed in PostgreSQL."""
