"""Handlers: the code that workers run, and a registry that knows their names without importing them."""
