"""The worker: claims tasks, runs their handlers, renews their leases and reports. It makes no decisions about jobs."""
