"""The ledger, the transport and the notifier of a worker that reaches the platform over HTTP only."""
