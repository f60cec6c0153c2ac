"""Does the suite turn red? Bugs that such engines are known for, inserted one at a time into a copy of the tree.

catalogue   the bugs: what each is here, the text it replaces, and the layer of tests that must notice
scratch     the copy, in which a bug is put and taken out again
trials      the unharmed copy passes; each bug is caught, or the run has failed
__main__    `python -m mutants`, which is `make mutants`
"""
