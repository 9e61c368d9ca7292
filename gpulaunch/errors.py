"""The failures that a user can meet, with their exit statuses, and words of their messages.

The statuses are those of docker run, env and timeout where these have one, and sysexits'
EX_TEMPFAIL for 75.
"""

from collections.abc import Iterable

USAGE = 2
WOULD_WAIT = 75
TIMED_OUT = 124
FAILED = 125
CANNOT_EXECUTE = 126
NOT_FOUND = 127


def printable(text: str) -> str:
    r"""Escape control characters and undecodable bytes of text that a user supplied, as \xNN.

    Example:
        >>> printable("a\x1b[31mb")
        'a\\x1b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def quoted(text: str) -> str:
    """Text that a user supplied, between quotes and safe for a terminal."""
    return f"'{printable(text)}'"


def excerpt(text: str) -> str:
    """Text for a message, or the beginning of one that is longer than 40 characters."""
    return text if len(text) <= 40 else f"{text[:39]}…"


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: "1 rank", "2 ranks"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def nearest(text: str, known: Iterable[str], least: float = 0.6) -> list[str]:
    """Return the names that somebody may have meant; empty if none is near.

    This is the same name but for capitals, and _ for -; else those that begin with the text, three
    at most; else the most alike one.

    Args:
        least: how much alike they have to be, as difflib measures it: 0 to 1.
    """
    from difflib import get_close_matches  # late: it costs 3 ms

    forms = {_form(name): name for name in known}
    wanted = _form(text)
    if wanted in forms:
        return [forms[wanted]]
    if len(wanted) >= 3:  # a shorter beginning would often fit by chance
        longer = sorted((form for form in forms if form.startswith(wanted)), key=len)
        if longer:
            return [forms[form] for form in longer[:3]]
    return [forms[form] for form in get_close_matches(wanted, forms, n=1, cutoff=least)]


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: ": did you mean status?", or nothing."""
    found = nearest(text, known)
    return f": did you mean {' or '.join(found)}?" if found else ""


def _form(name: str) -> str:
    """Return a name in the form that is compared: dashes before it would make any two alike."""
    return name.lower().replace("_", "-").lstrip("-")


def _escaped(character: str) -> str:
    code = ord(character)
    if (
        0xDC80 <= code <= 0xDCFF
    ):  # a byte that could not be decoded, as Python's surrogateescape carries it
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class GpulaunchError(Exception):
    """One line for the user, at most one hint, and the exit status that goes with them.

    Args:
        message: names the subject first, says asked and found, in lower case without a full stop.
        hint: what to do about it, or None.
    """

    exit_status = FAILED

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(GpulaunchError):
    """The command line or a file asks for something that can never be."""

    exit_status = USAGE


class RefusedError(UsageError):
    """The machine can never grant the request."""


class WouldWaitError(GpulaunchError):
    """The request could be met later, and waiting was not asked for."""

    exit_status = WOULD_WAIT
    __notes__: "list[str]"  # tracebacks show them from Python 3.11 on


class TimedOutError(GpulaunchError):
    """The launch waited, or the job ran, for as long as it may."""

    exit_status = TIMED_OUT


class FailedError(GpulaunchError):
    """Gpulaunch itself failed, or cannot tell."""


def call_failed(what: str, problem: OSError) -> FailedError:
    """Return an error that says what was to be done, and why the system call for it failed."""
    return FailedError(f"{what}: {(problem.strerror or str(problem)).lower()}")


class NoDriverError(FailedError):
    """This machine has no driver of GPUs."""


class NotShareableError(Exception):
    """GPUs that were to be shared cannot be, for the reason in its text; GPUs of its own may do."""


class FieldError(Exception):
    """A value in a document is wrong; whoever read the file adds its name and line.

    Args:
        path: keys and list positions from the top of the document down to the value.
    """

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message
