"""The workflows that can be submitted: the shipped ones, those of other packages, and those in configured folders.

`entry_points` finds what other packages add, for workflows and for handlers. `workflows` reads all workflow files.
"""
