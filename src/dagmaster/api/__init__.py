"""The HTTP API of the platform: one module per resource. It has no SQL: `operations` and `database` read and write."""
