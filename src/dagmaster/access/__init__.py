"""Access: who the caller is, and what the caller may read. Pure functions, without I/O.

caller      the caller of a request and its scopes
keys        creating, parsing and comparing the text of an API key
permissions what each scope allows
decision    what a caller may read of a version: one function for everything that is served
links       signed links that give access to one version until they expire
"""
