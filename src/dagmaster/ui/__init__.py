"""The web pages: their built files, and the routes that serve them below /ui/.

The sources are in the folder `ui/` of the repository. `make ui` builds them into `static/`, which is part of the wheel
and not of the repository.
"""
