"""Access: who the caller is, and what the caller may read. Pure functions, without I/O.

caller      the caller of a request and its scopes
secret_text the format of keys and sessions: prefix, id and secret
keys        creating, parsing and comparing the text of an API key
sessions    the same for sessions of browsers, and their CSRF tokens
permissions what each scope allows
decision    what a caller may read of a version: one function for everything that is served
links       signed links that give access to one version until they expire
worker_ids  ids of workers that belong to the caller to which they were issued
"""
