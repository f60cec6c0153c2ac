"""Assets: what is published, in which versions, and who decided it.

    states      the states of a revision, a version and an asset
    identity    platforms, their references, and the id of an asset
    rules       what a submission or a reviewer's action changes, or the code of its refusal

Pure: no database, no files, no clock. The engine knows nothing about assets.
"""
