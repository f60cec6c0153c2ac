"""The map server: STAC API, tiles, files and pages of the catalogued datasets, in a process without jobs."""
