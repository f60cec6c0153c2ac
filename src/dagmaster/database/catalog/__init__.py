"""The STAC catalogue: pgSTAC, written when an asset is published or withdrawn, read by the map server."""
