"""The gateway: the HTTP server that partners use. It reads submissions, assets and jobs from views of the
database, and forwards all other requests.

It never writes: its database role may only select, and it imports nothing that writes. A request that changes something
is forwarded to an orchestrator with the credentials of the caller, which the orchestrator verifies again.
"""
