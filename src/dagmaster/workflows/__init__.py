"""Workflows: what a YAML file may say, how it is read and checked, how its templates are evaluated. Pure."""
