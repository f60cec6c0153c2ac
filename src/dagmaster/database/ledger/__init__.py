"""The ledger: the set-based calls through which submitters, orchestrators and workers read and write durable state."""
