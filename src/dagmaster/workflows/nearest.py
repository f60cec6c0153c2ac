"""The known name that is most similar to a misspelt one."""

import difflib
from collections.abc import Collection, Iterable

_LONGEST = 100
_MAX_LISTED = 30


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The known word closest to this one, if any is close."""
    # Comparing is quadratic in the length, and a text this long is not a misspelt name.
    if len(word) > _LONGEST:
        return None
    short = [other for other in candidates if len(other) <= _LONGEST]
    return next(iter(difflib.get_close_matches(word, short, n=1)), None)


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """The end of a message about an unknown word."""
    close = nearest(word, candidates)
    return f"; did you mean '{close}'?" if close else ""


def or_known(word: str, candidates: Collection[str]) -> str:
    """As `did_you_mean`; if no word is close, a list of known words."""
    close = did_you_mean(word, candidates)
    if close or not candidates:
        return close
    more = f" and {len(candidates) - _MAX_LISTED} more" if len(candidates) > _MAX_LISTED else ""
    return f"; known names are {', '.join(sorted(candidates)[:_MAX_LISTED])}{more}"
