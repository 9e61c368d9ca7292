"""The Share record: a job's part of the GPUs that it shares, and its document in the lease."""
# pure: decides on plain values

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal

from gpulaunch.errors import FieldError
from gpulaunch.files.fields import Above, FieldTable, ListOf, RowOf, TableOf
from gpulaunch.leases.record_fields import decode, encode
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
        throughput_tolerance_percentage: largest part of its speed that the client is predicted to
            lose to its neighbours. Our choice: 20 is the most that the model predicts while SM
            utilization sums to 100 %, so that by default the paper's bounds decide there.
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
        slowdowns: measured time beside another client / time alone - 1, by the name of the other
            client's demand.
        on_one_gpu: names whose slowdown was measured with both on one GPU, not one socket.
    """

    demand: Demand
    objective: Objective = Objective()
    slowdowns: Mapping[str, float] = {}
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
    "pipe_directory": str,
    "guest": bool,
    "promised_pace": (0.0, 1.0),
}
_CLIENT: FieldTable = {
    "demand": dict,
    "objective": dict,
    "slowdowns": TableOf((0.0, 1e4)),
    "on_one_gpu": ListOf(str),
}
_DEMAND: FieldTable = {
    "name": str,
    "sm_utilization_percentage": (0.0, 100.0),
    "memory_bandwidth_utilization_percentage": (0.0, 100.0),
    "memory_bytes": (0, 1 << 62),
    "power_w": (0.0, 1e5),
    "curve": ListOf(RowOf(Above(0.0, 100.0), Above(0.0, 1e15))),
    "counters": RowOf((0.0, 1e6), (0.0, 1.0), (1, 1024)),
    "intensity": ("memory", "compute"),
    "utilization": ("share", "time-active"),
    "busy_percentage": (0.0, 100.0),
    "feels": (0.0, 1000.0),
    "presses": (0.0, 1000.0),
}
_OBJECTIVE: FieldTable = {
    "name": OBJECTIVES,
    "throughput_weight": (0.0, 1e6),
    "energy_weight": (0.0, 1e6),
    "throughput_tolerance_percentage": (0.0, 100.0),
}
_MOST_CHARACTERS = 100


def share_document(share: Share) -> dict[str, Any]:
    """Return the document of a share."""
    client = share.client
    return {
        **encode(share, without=("client",)),
        **encode(client, without=("demand", "objective", "slowdowns")),
        "demand": encode(client.demand, as_rows=("counters",))
        | {"curve": list(map(as_list, client.demand.curve))},
        "objective": as_dict(client.objective),
        "slowdowns": dict(client.slowdowns),
    }


def parse_share(document: object) -> Share:
    """Return the share of a document of share_document.

    Raises:
        FieldError: it is no such document.
    """
    client = decode(
        Client,
        document,
        _CLIENT,
        needed=("demand", "objective", "slowdowns"),
        certain=_CLIENT,
        readers={"demand": _demand, "objective": _objective},
        where=("share",),
    )
    needed = ("group", "sm_percentage", "bandwidth_sensitive")
    share = decode(
        Share, document, _SHARE, needed=needed, certain=_SHARE, where=("share",), client=client
    )
    for text in filter(None, (*share.group, share.pipe_directory)):
        if not (text.isascii() and text.isprintable() and len(text) <= _MOST_CHARACTERS):
            raise FieldError(("share",), f"{text!r} is neither a UUID nor a directory")
    if share.pipe_directory is not None and not share.pipe_directory.startswith("/"):
        raise FieldError(("share",), f"{share.pipe_directory!r} is no absolute path")
    return share


def _objective(document: object) -> Objective:
    return decode(Objective, document, _OBJECTIVE, needed=_OBJECTIVE, where=("share", "objective"))


def _demand(document: object) -> Demand:
    demand = decode(
        Demand,
        document,
        _DEMAND,
        needed=tuple(_DEMAND)[:4],
        certain=_DEMAND,
        readers={
            "curve": lambda rows: tuple(CurvePoint(*row) for row in rows),
            "counters": lambda row: Counters(*row),
        },
        where=("share", "demand"),
    )
    if any(one.sm_percentage >= other.sm_percentage for one, other in pairwise(demand.curve)):
        raise FieldError(("share", "demand", "curve"), "curve: it does not ascend")
    return demand
