"""Records: immutable values with named fields, in slots, that cost little to define.

    class Refuse(Record):
        reason: str

A record is equal only to a record of its own class with equal fields, and it can be hashed,
copied and pickled. It is no tuple: it has no order, no length and no positions.

A launch defines 65 record classes and makes 200 values. typing.NamedTuple compiles a constructor
for each class as it is defined, which takes seven times as long as all the rest, and dataclasses
import inspect besides. Here a constructor is compiled when its class turns out to be made often.
To a type checker a record is a frozen dataclass.
"""
# pure: decides on plain values

from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import Field, replace
    from inspect import Signature

    from typing_extensions import Self, dataclass_transform  # type checkers bring it

else:

    def replace(record: "Record", /, **changes: object) -> "Record":
        """Return a copy of the record with other values in the fields that are named."""
        return record.__class__(**{**as_dict(record), **changes})

    def dataclass_transform(**_traits: bool) -> "Callable[[type], type]":
        """Return what typing has from Python 3.11 on."""
        return lambda decorated: decorated


__all__ = ["Record", "as_dict", "as_list", "default_values", "field_names", "replace"]

OFTEN = 32
"""After so many values of a class a compiled constructor pays."""

_set = object.__setattr__


class RecordType(type):
    """The type of record classes: a slot for each name that the class body annotates."""

    _fields: tuple[str, ...]
    _defaults: "dict[str, Any]"
    _made: "count[int]"

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: "dict[str, Any]"
    ) -> "RecordType":
        """Define a record class."""
        if any(getattr(base, "_fields", ()) for base in bases):
            raise TypeError(f"{name} cannot inherit the fields of another record")
        fields = namespace.get("__annotations__")
        if fields is None:  # from Python 3.14 on a class body leaves a function instead
            annotate = namespace.get("__annotate_func__")
            fields = annotate(1) if annotate else ()
        namespace["__slots__"] = namespace["__match_args__"] = namespace["_fields"] = tuple(fields)
        namespace["_defaults"] = {
            field: namespace.pop(field) for field in fields if field in namespace
        }
        namespace["_made"] = count(1)
        return type.__new__(cls, name, bases, namespace)

    @property
    def __signature__(cls) -> "Signature":
        """What inspect.signature, help() and editors show: the fields, with their defaults."""
        from inspect import Parameter, Signature  # late: a launch has no use for it

        kind = Parameter.POSITIONAL_OR_KEYWORD
        parameters = [
            Parameter(
                name, kind, default=cls._defaults.get(name, Parameter.empty), annotation=type_
            )
            for name, type_ in cls.__annotations__.items()
        ]
        return Signature(parameters, return_annotation=cls)

    def _constructor(cls) -> "Callable[..., Record]":
        """Compile the constructor that one would write by hand.

        It fills the slots by their descriptors, past __setattr__, which refuses.
        """
        fields, defaults = cls._fields, cls._defaults
        names: dict[str, Any] = {"_new": object.__new__, "_defaults": defaults}
        names |= {f"_set_{name}": cls.__dict__[name].__set__ for name in fields}
        parameters = [
            f"{name}=_defaults[{name!r}]" if name in defaults else name for name in fields
        ]
        lines = [
            f"def {cls.__name__}({', '.join(['_class', '/', *parameters])}):",
            " _made = _new(_class)",
            *[f" _set_{name}(_made, {name})" for name in fields],
            " return _made",
        ]
        exec("\n".join(lines), names)  # noqa: S102 - all of it is from the class body
        constructor: Callable[..., Record] = names[cls.__name__]
        return constructor


@dataclass_transform(frozen_default=True)
class Record(metaclass=RecordType):
    """A value with the fields that its class annotates; what the class assigns is the default."""

    if TYPE_CHECKING:  # what the type of replace asks for
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    else:

        def __new__(cls, /, *values: object, **named: object) -> "Self":
            """Make a value from fields by position and by name."""
            if next(cls._made) == OFTEN:
                cls.__new__ = staticmethod(cls._constructor())
            made = object.__new__(cls)
            fields, given = cls._fields, len(values)
            for name, value in zip(fields, values, strict=False):
                _set(made, name, value)
            rest = {**cls._defaults, **named} if named else cls._defaults
            try:
                for name in fields[given:]:
                    _set(made, name, rest[name])
            except KeyError:  # a field is missing
                return cls._constructor()(cls, *values, **named)  # raises Python's own TypeError
            if given > len(fields) or not named.keys() <= set(fields[given:]):
                return cls._constructor()(cls, *values, **named)  # raises it likewise
            return made

    def __setattr__(self, name: str, value: object) -> None:
        """Raise AttributeError: others may hold this record, or have it as a key."""
        raise AttributeError(f"cannot assign {name!r}: {self.__class__.__name__} is immutable")

    def __delattr__(self, name: str) -> None:
        """Raise AttributeError, as __setattr__ does."""
        raise AttributeError(f"cannot delete {name!r}: {self.__class__.__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        """Compare the fields with those of a record of the same class."""
        if not isinstance(other, Record) or other.__class__ is not self.__class__:
            return NotImplemented
        return as_list(self) == as_list(other)

    def __hash__(self) -> int:
        """Hash the fields, all of which have to be hashable."""
        return hash(tuple(as_list(self)))

    def __repr__(self) -> str:
        """Show the class and its fields as in a call."""
        fields = ", ".join([f"{name}={value!r}" for name, value in as_dict(self).items()])
        return f"{self.__class__.__qualname__}({fields})"

    def __reduce__(self) -> "tuple[type[Record], tuple[object, ...]]":
        """Copy and pickle by way of the constructor, since slots cannot be assigned."""
        return self.__class__, tuple(as_list(self))


def field_names(record: "type[Record]") -> tuple[str, ...]:
    """Return the names of the fields, in the order of the class body."""
    return record._fields


def default_values(record: "type[Record]") -> "dict[str, Any]":
    """Return the defaults of the fields that have one."""
    return record._defaults  # noqa: SLF001


def as_dict(record: Record) -> "dict[str, Any]":
    """Return the fields by name; records in them stay records."""
    return {name: getattr(record, name) for name in record.__class__._fields}


def as_list(record: Record) -> "list[Any]":
    """Return the fields in the order of the class body; records in them stay records."""
    return [getattr(record, name) for name in record.__class__._fields]
