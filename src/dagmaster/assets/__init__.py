"""Assets: what is published, in which versions, and who decided it.

    states      the states of a revision, a version and an asset
    identity    platforms, their references, and the id of an asset
    rules       what a submission or a reviewer's action changes, or the code of its refusal
    external    external copies of a revision: which of them must exist, and what to do next
    layers      the layers of an asset
    uploads     the names of uploaded objects, and the headers of the tus protocol
    request_ids the ids under which the requests of platforms are stored
    model       the records: rows of the tables

Pure: no database, no files, no clock. The engine knows nothing about assets.
"""
