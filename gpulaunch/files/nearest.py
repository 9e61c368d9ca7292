"""The known names that are nearest to an unknown one, for messages about mistakes."""
# pure: decides on plain values

from collections.abc import Iterable

_LEAST_CHARACTERS = 3
"""A shorter text is not the beginning of a name: it would often fit by chance."""

_MOST = 3


def nearest(text: str, known: Iterable[str], least: float = 0.6) -> list[str]:
    """Return the names that somebody may have meant; empty if none is near.

    This is the same name but for capitals, and _ for -; else those that begin with the text, three
    at most; else the most alike one.

    Args:
        text: what was written.
        known: the names.
        least: how much alike they have to be, as difflib measures it: 0 to 1.
    """
    from difflib import get_close_matches  # late: for mistakes only, and it costs 3 ms

    forms = {_form(name): name for name in known}
    wanted = _form(text)
    if wanted in forms:
        return [forms[wanted]]
    if len(wanted) >= _LEAST_CHARACTERS:
        longer = sorted((form for form in forms if form.startswith(wanted)), key=len)
        if longer:
            return [forms[form] for form in longer[:_MOST]]
    return [forms[form] for form in get_close_matches(wanted, forms, n=1, cutoff=least)]


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: ": did you mean status?", or nothing."""
    found = nearest(text, known)
    return f": did you mean {' or '.join(found)}?" if found else ""


def _form(name: str) -> str:
    """Return a name in the form that is compared: dashes before it would make any two alike."""
    return name.lower().replace("_", "-").lstrip("-")
