"""Where a worker runs plain handlers: in its own child processes, or in child processes on a cluster."""
