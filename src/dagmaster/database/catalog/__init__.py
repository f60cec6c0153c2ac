"""The STAC catalogue: pgSTAC in the same database, written by handlers and read by the map server."""
