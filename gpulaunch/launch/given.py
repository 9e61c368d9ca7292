"""A value that a command line or a call of the Python API gives for a setting."""
# pure: decides on plain values

from gpulaunch.records import Record


class Given(Record):
    """One value as it was given.

    Attributes:
        option: the option as it was written, for messages.
        text: the value, or what the option stands for.
        before: earlier values of an option that may be repeated, in their order.
    """

    option: str
    text: str
    before: tuple[str, ...] = ()
