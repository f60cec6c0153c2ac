"""The command line: thin commands that call the client, the local platform or a role, and print the answer.

Modules import little at the top, because every command pays for it: heavy modules are imported where they are used.
"""
