"""One job's part of the GPUs that it shares, as its lease says it."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence
from itertools import pairwise

from gpulaunch.errors import FieldError
from gpulaunch.files.fields import FieldTable, checked
from gpulaunch.leases.record_fields import texts_of
from gpulaunch.profiles.demand import Counters, CurvePoint, Demand
from gpulaunch.records import Record, as_dict, as_list
from gpulaunch.typing import Any, Literal

OBJECTIVES = ("throughput", "energy", "product")
"""What jobs may share a GPU for (mps-sharing-2024 IV.B and IV.C)."""


class Objective(Record):
    """The purpose of sharing.

    Attributes:
        name: "throughput", "energy" or "product".
        throughput_weight: exponent of throughput in the product.
        energy_weight: exponent of energy in the product.
        throughput_tolerance_percentage: of its speed alone that any client may be predicted to lose
            where one shares for energy or product. Our choice: 20 is the most that the model
            predicts while SM utilization sums to 100 %, so by default the paper's bounds decide
            alone; higher bounds, or a lower tolerance, are held to it.
    """

    name: Literal["throughput", "energy", "product"] = "throughput"
    throughput_weight: float = 1.0
    energy_weight: float = 1.0
    throughput_tolerance_percentage: float = 20.0


class Client(Record):
    """A job as one of several on a GPU.

    Attributes:
        demand: what it uses of the GPU.
        objective: what it shares for.
        slowdowns: name of another client's demand -> time beside it / time alone - 1, measured or
            predicted.
        predicted: names whose slowdown is predicted.
    """

    demand: Demand
    objective: Objective = Objective()
    slowdowns: Mapping[str, float] = {}
    predicted: tuple[str, ...] = ()


class Share(Record):
    """The part of its GPUs that a client of MPS has for as long as it runs: it cannot be resized.

    Attributes:
        group: UUIDs of the GPUs of its share group, ascending; all members have the same.
        sm_percentage: its active thread percentage, 1-100, a cap.
        bandwidth_sensitive: whether it depends on the links between them.
        client: what the other clients have to reckon with.
        pipe_directory: where its MPS daemon answers; None on a described machine, which has none.
    """

    group: tuple[str, ...]
    sm_percentage: int
    bandwidth_sensitive: bool
    client: Client
    pipe_directory: str | None = None


_SHARE: FieldTable = {
    "group": list,
    "sm_percentage": (1, 100),
    "bandwidth_sensitive": bool,
    "demand": dict,
    "objective": dict,
    "slowdowns": dict,
    "predicted": list,
    "pipe_directory": str,
}
_MOST_CHARACTERS = 100
_DEMAND: FieldTable = {
    "name": str,
    "sm_utilization_percentage": (0.0, 100.0),
    "memory_bandwidth_utilization_percentage": (0.0, 100.0),
    "memory_bytes": (0, 1 << 62),
    "power_w": (0.0, 1e5),
    "curve": list,
    "counters": list,
    "intensity": ("memory", "compute"),
}
_OBJECTIVE: FieldTable = {
    "name": OBJECTIVES,
    "throughput_weight": (0.0, 1e6),
    "energy_weight": (0.0, 1e6),
    "throughput_tolerance_percentage": (0.0, 100.0),
}


def share_document(share: Share) -> dict[str, Any]:
    """Return what a record says of a share."""
    known = share.client.demand
    demand = {key: value for key, value in as_dict(known).items() if value is not None}
    demand["curve"] = [as_list(point) for point in known.curve]
    if known.counters:
        demand["counters"] = as_list(known.counters)
    return {
        "group": share.group,
        "sm_percentage": share.sm_percentage,
        "bandwidth_sensitive": share.bandwidth_sensitive,
        "demand": demand,
        "objective": as_dict(share.client.objective),
        "slowdowns": dict(share.client.slowdowns),
        **({"predicted": share.client.predicted} if share.client.predicted else {}),
        **({"pipe_directory": share.pipe_directory} if share.pipe_directory else {}),
    }


def parse_share(document: object) -> Share:
    """Read what share_document wrote.

    Raises:
        FieldError: this is no such document.
    """
    required = [key for key in _SHARE if key not in ("predicted", "pipe_directory")]
    share = checked(document, _SHARE, required=required, where=("share",))
    slowdowns = checked(
        share["slowdowns"],
        dict.fromkeys(share["slowdowns"], (0.0, 1e4)),
        where=("share", "slowdowns"),
    )
    objective = checked(
        share["objective"], _OBJECTIVE, required=tuple(_OBJECTIVE), where=("share", "objective")
    )
    group, directory = texts_of(share, "group"), share.get("pipe_directory")
    predicted = texts_of(share, "predicted") if "predicted" in share else ()
    for text in group if directory is None else (*group, directory):
        if not (text.isascii() and text.isprintable() and len(text) <= _MOST_CHARACTERS):
            raise FieldError(("share",), f"{text!r} is neither a UUID nor a directory")
    if directory is not None and not directory.startswith("/"):
        raise FieldError(
            ("share", "pipe_directory"), f"pipe_directory: {directory!r} is no absolute path"
        )
    return Share(
        group=group,
        sm_percentage=share["sm_percentage"],
        bandwidth_sensitive=share["bandwidth_sensitive"],
        client=Client(_demand(share["demand"]), Objective(**objective), dict(slowdowns), predicted),
        pipe_directory=directory,
    )


def _demand(document: Mapping[str, Any]) -> Demand:
    required = [key for key in _DEMAND if key not in ("power_w", "counters", "intensity")]
    demand = checked(document, _DEMAND, required=required, where=("share", "demand"))
    points = [_numbers(point, "curve", ((0.0, 100.0), (0.0, 1e15))) for point in demand["curve"]]
    if any(one[0] >= other[0] for one, other in pairwise(points)) or any(
        0 in point for point in points
    ):
        raise FieldError(
            ("share", "demand", "curve"), f"curve: {demand['curve']!r} does not ascend from above 0"
        )
    counters = demand.get("counters")
    if counters is not None:
        accesses, hit_rate, size = _numbers(
            counters, "counters", ((0.0, 1e6), (0.0, 1.0), (1, 1024))
        )
        counters = Counters(accesses, hit_rate, int(size))
    curve = tuple(CurvePoint(*point) for point in points)
    return Demand(**{**demand, "curve": curve, "counters": counters})


def _numbers(values: object, key: str, ranges: Sequence[tuple[float, float]]) -> list[float]:
    if not isinstance(values, list) or len(values) != len(ranges):
        raise FieldError(
            ("share", "demand", key), f"{key}: {values!r} is not {len(ranges)} numbers"
        )
    for value, (least, most) in zip(values, ranges, strict=True):
        if type(value) not in (int, float) or not least <= value <= most:
            raise FieldError(
                ("share", "demand", key),
                f"{key}: {value!r} is no number within {least:g} to {most:g}",
            )
    return values
