"""Check that the tests detect bugs: insert known bugs of workflow engines, one at a time, into a copy of the tree.

catalogue   the bugs: the text that each replaces, and the layer of tests that must detect it
scratch     the copy, in which a bug is inserted and removed again
trials      run the tests: they must pass on the unchanged copy, and fail with each bug
__main__    `python -m mutants`, which is `make mutants`
"""
