"""The gateway: what partners and their programs reach. It reads views, and forwards everything else.

It never writes: its database role may only select, and it imports nothing that writes. A request that changes something
is sent on to an orchestrator with the credentials of the caller, which the orchestrator verifies again.
"""
