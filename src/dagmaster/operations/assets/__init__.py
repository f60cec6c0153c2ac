"""Operations on assets, one in each module: submit, approve, reject, clear, expose, unpublish, delete, export, adopt.
Others create links, edit metadata, and change platforms and the external database.

A submission or decision applies a pure rule of `dagmaster.assets.rules` under a lock on the asset, and records who did
what and why. A change and its effect on the catalogue are one transaction.

Five modules are parts of operations: `request`, `source` and `repeated` check a submission, `dry_run` reports what a
submission would do, and `change` is the common part of all decisions of a reviewer. `compare` only computes.
"""
