"""What a command line or a call of the Python API says about one setting."""
# pure: decides on plain values

from gpulaunch.records import Record


class Given(Record):
    """One value as it was given.

    Attributes:
        option: as it was written, for messages.
        text: the value, or what the option stands for.
        before: values that the same option had further to the left, if it may stand several times.
    """

    option: str
    text: str
    before: tuple[str, ...] = ()
