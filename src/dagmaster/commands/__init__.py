"""Direct commands: an operation on the database that an administrator waits for. No queue, no job.

registry    the decorator, and how a command is run: permission, time limit
metadata    publish and withdraw layer metadata, here and in the external database
assets      rebuild STAC documents; decide on many versions
platform    migrate the schema; make processes reload their caches

A command is one function: synchronous for its caller, done in ten seconds, idempotent, with one event in the audit log
that is written in the transaction of its effect. Operations that need GDAL or more time are workflows.
"""
