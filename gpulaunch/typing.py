"""Names of the standard module typing, without importing it at run time.

Importing typing takes 10 million instructions, a twentieth of a whole launch, and at run time it
does nothing for this package: no annotation is ever looked at. A type checker sees typing's own
names here; a running program gets stand-ins, which take parameters and alternatives and mean
nothing. Ruff treats this module as typing (`typing-modules` in pyproject.toml) and refuses the real
one.
"""
# pure: decides on plain values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import (
        IO,
        Any,
        BinaryIO,
        ClassVar,
        Generic,
        Literal,
        NoReturn,
        Protocol,
        TextIO,
        TypeVar,
        cast,
        overload,
    )

    from typing_extensions import Self, dataclass_transform  # type checkers bring it
else:

    class _Name:
        """A name in an annotation: `Name[int]`, `Name | None`."""

        def __getitem__(self, _parameters):
            return self

        def __or__(self, _other):
            return self

        __ror__ = __or__

    IO = Any = BinaryIO = ClassVar = Literal = NoReturn = Self = TextIO = _Name()

    class Generic:
        """The base of a class with type parameters."""

        __slots__ = ()

        def __class_getitem__(cls, _parameters):
            return cls

    class Protocol(Generic):
        """The base of a class that says what others have to offer."""

        __slots__ = ()

    def TypeVar(_name, bound=None):  # noqa: ARG001, N802
        """Return a name for annotations."""
        return Any

    def cast(_type, value):
        """Return the value."""
        return value

    def dataclass_transform(**_traits):
        """Return a decorator that returns what it is given."""
        return overload

    def overload(decorated):
        """Return what it is given."""
        return decorated


__all__ = [
    "IO",
    "TYPE_CHECKING",
    "Any",
    "BinaryIO",
    "ClassVar",
    "Generic",
    "Literal",
    "NoReturn",
    "Protocol",
    "Self",
    "TextIO",
    "TypeVar",
    "cast",
    "dataclass_transform",
    "overload",
]
