"""STAC items and collections, built from measurements and validated. A library without jobs."""
