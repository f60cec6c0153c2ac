"""Where a worker runs plain handlers: in its own child processes, or in those of machines of a cluster."""
