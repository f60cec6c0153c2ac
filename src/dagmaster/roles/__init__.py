"""Each role as a process: an orchestrator, worker, map server or gateway, wired from its parts, run until stopped."""
