"""Each role as a process: an orchestrator, a worker or a map server, wired from its parts, run until stopped."""
