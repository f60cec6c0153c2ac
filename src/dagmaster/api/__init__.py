"""The HTTP API of the platform: one module per resource. It writes only through operations and the ledger."""
