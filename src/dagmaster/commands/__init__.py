"""Direct commands: operations on the database whose result the caller waits for, without a queue or a job.

registry    the decorator that registers a command, its context, and the time limit
metadata    publish and withdraw layer metadata, in this and in the external database
assets      rebuild STAC documents; decide on many versions; clear many assets
platform    migrate the schema; make orchestrators reload their workflows

A command is one function: synchronous for its caller, done in ten seconds, idempotent. It writes one event into the
audit log, in the transaction of its effect; if the effect has several transactions (`schema.migrate`,
`assets.review_many`), after them. Operations that need GDAL or more time are workflows.
"""
