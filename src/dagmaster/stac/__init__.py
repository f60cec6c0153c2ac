"""STAC items and collections: made from what was measured, and validated. A library that knows nothing of jobs."""
