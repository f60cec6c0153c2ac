"""What can be submitted: the workflows that ship, those of other packages, and those in configured folders.

`entry_points` finds what other packages add, for workflows and for handlers. `workflows` reads all workflow files.
"""
