"""Assets in the database: read for the API and the map server, changed by operations under a lock on the asset."""
