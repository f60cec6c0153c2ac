"""The orchestrator's API: one app, one module per resource. It may write, through operations and the ledger."""
