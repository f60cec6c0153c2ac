"""What users do with jobs, assets and keys: one operation in each module, one transaction each.

`schema` is the exception: its operations deploy and migrate the database, each in one or several transactions.
"""
