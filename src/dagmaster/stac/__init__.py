"""STAC items and collections, built from measurements and validated. A library that does not know jobs."""
