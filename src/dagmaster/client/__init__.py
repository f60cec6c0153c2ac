"""The HTTP API as its clients see it: request and response models, limits, and a client. No server code is imported.

`dagmaster.api` declares its routes with these models, and the command line reads responses with them.
"""
