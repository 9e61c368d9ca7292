"""The Share record: a job's part of the GPUs that it shares, and its document in the lease."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from gpulaunch.errors import FieldError
from gpulaunch.files.fields import FieldTable, ListOf, checked
from gpulaunch.profiles.demand import Counters, CurvePoint, Demand
from gpulaunch.records import Record, as_dict, as_list

OBJECTIVES = ("throughput", "energy", "product")
"""Objectives for which jobs may share a GPU (mps-sharing-2024 IV.B and IV.C)."""


class Objective(Record):
    """The purpose of sharing.

    Attributes:
        name: "throughput", "energy" or "product".
        throughput_weight: exponent of throughput in the product.
        energy_weight: exponent of energy in the product.
        throughput_tolerance_percentage: largest predicted loss of speed of any client, compared
            with running alone, if the objective is energy or product. Our choice: 20 is the most
            that the model predicts while SM utilization sums to 100 %, so that by default the
            paper's bounds decide; with higher bounds or a lower tolerance it takes effect.
    """

    name: Literal["throughput", "energy", "product"] = "throughput"
    throughput_weight: float = 1.0
    energy_weight: float = 1.0
    throughput_tolerance_percentage: float = 20.0


class Client(Record):
    """A job as one of several on a GPU.

    Attributes:
        demand: its use of the GPU.
        objective: its purpose of sharing.
        slowdowns: time beside another client / time alone - 1, measured or predicted, by the name
            of the other client's demand.
        predicted: names whose slowdown is predicted.
        on_one_gpu: names whose slowdown was measured with both on one GPU, not one socket.
    """

    demand: Demand
    objective: Objective = Objective()
    slowdowns: Mapping[str, float] = {}
    predicted: tuple[str, ...] = ()
    on_one_gpu: tuple[str, ...] = ()


class Share(Record):
    """The part of its GPUs that a client of MPS has; it is fixed while the client runs.

    Attributes:
        group: UUIDs of the GPUs of its share group, ascending, equal for all members.
        sm_percentage: its active thread percentage, 1-100, a cap.
        bandwidth_sensitive: whether it depends on the links between them.
        client: the demand and objective that the other clients have to consider.
        pipe_directory: directory of its MPS daemon; None on a described machine, which has none.
        guest: whether its kernels come after those of the other clients (MPS client priority).
        promised_pace: speed predicted at its start beside the jobs that were there, as a part of
            its speed alone; None if unknown.
    """

    group: tuple[str, ...]
    sm_percentage: int
    bandwidth_sensitive: bool
    client: Client
    pipe_directory: str | None = None
    guest: bool = False
    promised_pace: float | None = None


_SHARE: FieldTable = {
    "group": ListOf(str),
    "sm_percentage": (1, 100),
    "bandwidth_sensitive": bool,
    "demand": dict,
    "objective": dict,
    "slowdowns": dict,
    "predicted": ListOf(str),
    "on_one_gpu": ListOf(str),
    "pipe_directory": str,
    "guest": bool,
    "promised_pace": (0.0, 1.0),
}
_MAY_MISS = ("predicted", "on_one_gpu", "pipe_directory", "guest", "promised_pace")
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
    "utilization": ("share", "time-active"),
    "busy_percentage": (0.0, 100.0),
}
_OPTIONAL = ("power_w", "counters", "intensity", "utilization", "busy_percentage")
_OBJECTIVE: FieldTable = {
    "name": OBJECTIVES,
    "throughput_weight": (0.0, 1e6),
    "energy_weight": (0.0, 1e6),
    "throughput_tolerance_percentage": (0.0, 100.0),
}


def share_document(share: Share) -> dict[str, Any]:
    """Return the document of a share."""
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
        **({"on_one_gpu": share.client.on_one_gpu} if share.client.on_one_gpu else {}),
        **({"pipe_directory": share.pipe_directory} if share.pipe_directory else {}),
        **({"guest": True} if share.guest else {}),
        **({} if share.promised_pace is None else {"promised_pace": share.promised_pace}),
    }


def parse_share(document: object) -> Share:
    """Return the share of a document of share_document.

    Raises:
        FieldError: it is no such document.
    """
    required = [key for key in _SHARE if key not in _MAY_MISS]
    share = checked(_known(document, _SHARE), _SHARE, required=required, where=("share",))
    slowdowns = checked(
        share["slowdowns"],
        dict.fromkeys(share["slowdowns"], (0.0, 1e4)),
        where=("share", "slowdowns"),
    )
    objective = checked(
        _known(share["objective"], _OBJECTIVE),
        _OBJECTIVE,
        required=tuple(_OBJECTIVE),
        where=("share", "objective"),
    )
    group, directory = tuple(share["group"]), share.get("pipe_directory")
    predicted, on_one_gpu = (tuple(share.get(key, ())) for key in ("predicted", "on_one_gpu"))
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
        client=Client(
            _parse_demand(share["demand"]),
            Objective(**objective),
            dict(slowdowns),
            predicted,
            on_one_gpu,
        ),
        pipe_directory=directory,
        guest=share.get("guest", False),
        promised_pace=share.get("promised_pace"),
    )


def _known(document: object, fields: FieldTable) -> object:
    """Return a table without keys of other versions."""
    if not isinstance(document, Mapping):
        return document
    return {key: value for key, value in document.items() if key in fields}


def _parse_demand(document: Mapping[str, Any]) -> Demand:
    """Return the demand of a document.

    Raises:
        FieldError: a field is wrong.
    """
    required = [key for key in _DEMAND if key not in _OPTIONAL]
    where = ("share", "demand")
    demand = checked(_known(document, _DEMAND), _DEMAND, required=required, where=where)
    points = [
        _check_numbers(point, "curve", ((0.0, 100.0), (0.0, 1e15))) for point in demand["curve"]
    ]
    if any(one[0] >= other[0] for one, other in pairwise(points)) or any(
        0 in point for point in points
    ):
        raise FieldError(
            ("share", "demand", "curve"), f"curve: {demand['curve']!r} does not ascend from above 0"
        )
    counters = demand.get("counters")
    if counters is not None:
        accesses, hit_rate, size = _check_numbers(
            counters, "counters", ((0.0, 1e6), (0.0, 1.0), (1, 1024))
        )
        counters = Counters(accesses, hit_rate, int(size))
    curve = tuple(CurvePoint(*point) for point in points)
    return Demand(**{**demand, "curve": curve, "counters": counters})


def _check_numbers(values: object, key: str, ranges: Sequence[tuple[float, float]]) -> list[float]:
    """Check a list of numbers, each by its range, and return it.

    Raises:
        FieldError: it is no such list.
    """
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
