"""Reads for the API and the command line: jobs, nodes, events, queues and instances. Nothing here writes."""
