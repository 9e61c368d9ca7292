"""Records: immutable values with named fields."""

import copy
import inspect
import pickle
from typing import Generic, TypeVar, get_type_hints

import pytest

import gpulaunch
from gpulaunch.records import OFTEN, Record, as_dict, replace

T = TypeVar("T")


class Point(Record):
    """Where something is."""

    x: int
    y: int = 0


class Pair(Record):
    """Has the fields of Point, and is none."""

    x: int
    y: int = 0


class Box(Record, Generic[T]):
    """Holds a value of any type."""

    content: T


@pytest.fixture(params=["first", "often"], autouse=True)
def made(request: pytest.FixtureRequest) -> None:
    """Take each test before and after the constructors are compiled."""
    if request.param == "often":
        for _ in range(OFTEN):
            assert (Point(1).x, Pair(1).x, Box(1).content) == (1, 1, 1)


def test_fields_by_position_and_by_name() -> None:
    """Fields are given in order or by name; what is not given has its default, others are wrong."""
    assert Point(1, 2) == Point(1, y=2) == Point(y=2, x=1)
    assert as_dict(Point(1)) == {"x": 1, "y": 0}
    for values, named in (((), {}), ((1, 2, 3), {}), ((1,), {"z": 1})):
        with pytest.raises(TypeError, match=r"^Point\(\) "):
            Point(*values, **named)


def test_equality_is_within_a_class() -> None:
    """Records are equal if class and fields are; no tuple and no other class equals them."""
    assert hash(Point(1, 2)) == hash(Point(1, 2))
    assert Point(1, 2) not in (Point(1, 3), Pair(1, 2), (1, 2))


def test_immutable() -> None:
    """Nothing in a record can be assigned, added or deleted; a copy differs in what is named."""
    point = Point(1, 2)
    for change in (
        lambda: setattr(point, "x", 2),
        lambda: setattr(point, "z", 2),
        lambda: delattr(point, "x"),
    ):
        with pytest.raises(AttributeError, match="Point is immutable"):
            change()
    assert (replace(point, y=3), point) == (Point(1, 3), Point(1, 2))
    with pytest.raises(TypeError, match="'z'"):
        replace(point, z=1)


def test_signature_hints_and_match() -> None:
    """inspect, typing and match see the fields of a record, with their types and defaults."""
    assert str(inspect.signature(Point)).startswith("(x: int, y: int = 0)")
    assert get_type_hints(Point) == {"x": int, "y": int}
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)
        case _:
            pytest.fail("no match")


def test_copied_and_pickled() -> None:
    """A copy is equal, by any of Python's ways of copying, and of a generic class."""
    box = Box(Point(1, 2))
    for got in (copy.copy(box), copy.deepcopy(box), pickle.loads(pickle.dumps(box))):
        assert got == box


def test_public_names() -> None:
    """Inspect and typing understand every public function, class and method; others are none."""
    with pytest.raises(AttributeError, match="module 'gpulaunch' has no attribute 'alocate'"):
        gpulaunch.alocate  # noqa: B018
    found = [getattr(gpulaunch, name) for name in gpulaunch.__all__]
    found += [member for one in found if isinstance(one, type) for member in vars(one).values()]
    for one in found:
        if inspect.isfunction(one) or isinstance(one, type):
            inspect.signature(one)
            get_type_hints(one)
