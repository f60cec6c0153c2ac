"""Callbacks: what their sender reads and writes, and what operators change. `database/reads/callbacks` lists them."""
