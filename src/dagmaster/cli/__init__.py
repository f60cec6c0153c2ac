"""The command line: where settings enter, parts are wired together, and people type.

Modules import little at their top, because every command pays for it: what is heavy is imported where it is used.
"""
