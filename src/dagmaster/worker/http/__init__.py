"""The ledger, the transport and the notifier of a worker without database access, which uses the HTTP API."""
