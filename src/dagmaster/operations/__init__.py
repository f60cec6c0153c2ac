"""What users do with jobs, assets, uploads and keys: usually one operation in each module, one transaction each.

`bulk` has one transaction for each job. `schema` deploys and migrates the database, in one or several transactions.
`uploads` and `verify_storage` also work with the objects in storage.
"""
