"""What users do to jobs, assets and keys: one verb in each module, one transaction each.

`schema` is the exception: its verbs are those of the database, and each is a transaction or a series of them.
"""
