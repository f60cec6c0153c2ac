"""Operations on assets, one in each module: submit, approve, reject, clear, expose, unpublish, delete; and platforms.

Each applies a pure rule of `dagmaster.assets.rules` under a lock on the asset, and records who did what and why. A
change and its effect on the catalogue are one transaction.

Three modules are parts of operations: `request` and `source` check a submission for `submit` and `dry_run`, and
`change` is the common part of all decisions of a reviewer. `compare` only computes.
"""
