"""How a running process is observed: logs without secrets, health probes, metrics and traces."""
