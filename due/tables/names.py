"""A name that is not there is answered with the nearest that are."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(wrong: str, known: Iterable[object]) -> str:
    """Words to append to "no column …": the names that were probably meant.

    >>> nearest("ages", ["age", "income"])
    "; did you mean 'age'?"
    >>> nearest("y", ["age", "income"])
    '; its columns are age, income'
    """
    names = list(map(str, known))
    by_lower = {name.lower(): name for name in names}
    close = get_close_matches(wrong.lower(), by_lower, n=3, cutoff=0.6)
    if close:
        return f"; did you mean {' or '.join(repr(by_lower[name]) for name in close)}?"
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"; its columns are {shown}"
