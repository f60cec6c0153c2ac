"""Reads for people: jobs, nodes, events and outputs, for the API and the command line. Nothing here decides or writes."""
