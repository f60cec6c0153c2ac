"""Request and response models of the HTTP API, one module per resource.

A response model is the row that SQL returns, the JSON that the API sends, and the object that a client reads.
"""
