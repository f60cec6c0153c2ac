"""Workflows: what a YAML file may contain, how it is read and checked, how its templates are evaluated. Pure."""
