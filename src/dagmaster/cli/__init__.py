"""The command line: thin commands that call the client, the local platform or a role, and print the result.

Modules import little at the top, because imports delay every command: heavy modules are imported where they are used.
"""
