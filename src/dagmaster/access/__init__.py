"""Access: who the caller is, and what the caller may read. Pure.

caller      the caller of a request and its scopes
keys        the text of an API key: made, read and compared
permissions what each scope allows
decision    what a caller may read of a version: one function for everything that is served
links       signed links that read one version until they expire
"""
