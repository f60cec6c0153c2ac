"""Upkeep and inspection of a database: the janitor's statements, retention, verification of histories, server facts."""
