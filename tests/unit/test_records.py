"""Records: values with named fields, equal only to their like, never changed, never tuples."""

import copy
import pickle

import pytest

from gpulaunch.records import Record, as_dict, as_list, field_names, replace


class Point(Record):
    """Two fields, one of them with a default."""

    x: int
    y: int = 2


class Place(Record):
    """Other fields of the same values."""

    x: int
    y: int = 2


MANY = 40  # from so many values on the constructor is a compiled one


@pytest.mark.parametrize("made_before", [0, MANY])
def test_construction(made_before: int) -> None:
    """By position, by name and by default, however many were made before."""
    for _ in range(made_before):
        Point(0)
    assert as_list(Point(1)) == as_list(Point(x=1)) == as_list(Point(1, y=2)) == [1, 2]


@pytest.mark.parametrize("made_before", [0, MANY])
@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), ((1, 2, 3), {}), ((1,), {"x": 1}), ((1,), {"z": 1})],
    ids=["too few", "too many", "twice", "unknown"],
)
def test_wrong_arguments(made_before: int, values: tuple, named: dict) -> None:
    """Arguments that do not fit are Python's own TypeError, with the name of the class."""
    for _ in range(made_before):
        Point(0)
    with pytest.raises(TypeError, match=r"Point\(\)"):
        Point(*values, **named)


def test_equality_is_of_one_class() -> None:
    """Equal fields make equal records of one class, and of no other; a record is no tuple."""
    assert Point(1) == Point(1, 2)
    assert hash(Point(1)) == hash(Point(1, 2))
    assert Point(1) != Point(2)
    assert Point(1) != Place(1)
    assert Point(1) != (1, 2)


def test_a_record_is_not_a_sequence() -> None:
    """It cannot be unpacked, indexed or ordered by accident."""
    for use in (iter, len, lambda one: one[0], lambda one: one < Point(2)):
        with pytest.raises(TypeError):
            use(Point(1))


@pytest.mark.parametrize("made_before", [0, MANY])
def test_never_changed(made_before: int) -> None:
    """Fields can be neither assigned nor deleted, and there are no others."""
    for _ in range(made_before):
        Point(0)
    point = Point(1)
    with pytest.raises(AttributeError, match="cannot assign 'x': Point is immutable"):
        point.x = 3
    with pytest.raises(AttributeError, match="cannot delete 'x': Point is immutable"):
        del point.x
    with pytest.raises(AttributeError):
        point.z = 3


def test_copies() -> None:
    """replace, copy and pickle give records of the same class."""
    assert replace(Point(1), y=5) == Point(1, 5)
    assert copy.deepcopy(Point(1)) == pickle.loads(pickle.dumps(Point(1))) == Point(1)
    with pytest.raises(TypeError):
        replace(Point(1), z=1)


def test_looking_in() -> None:
    """Names, values by name, and how a record is shown."""
    assert field_names(Point) == ("x", "y")
    assert as_dict(Point(1)) == {"x": 1, "y": 2}
    assert repr(Point(1)) == "Point(x=1, y=2)"
