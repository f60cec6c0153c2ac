"""Handlers: the code that workers run, and the registry that names them without importing them."""
