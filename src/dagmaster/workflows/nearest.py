"""The name someone probably meant."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to this one, if any is close."""
    # Comparing is quadratic in length; nobody means a name by a text this long.
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None) if len(word) <= 100 else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word."""
    close = nearest(word, known)
    return f"; did you mean '{close}'?" if close else ""
