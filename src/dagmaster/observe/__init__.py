"""What a running process shows of itself: logs without secrets, health probes and metrics."""
