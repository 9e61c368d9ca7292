"""Sharing as plain values: which jobs a request joins, what its lease says, and why not others."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from values import box, cases, lease, machine, request, ticket

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import (
    Constraint,
    Decision,
    Grant,
    Request,
    Sharing,
    State,
    Unfit,
    Wait,
)
from gpulaunch.files.units import parse_size
from gpulaunch.launch.options import Options
from gpulaunch.launch.read_sharing import capacity_of, read_sharing
from gpulaunch.leases.lease import Client, Lease, Objective, Share, parse_lease
from gpulaunch.machine.catalog import load_gpu_models
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.find import Machine
from gpulaunch.machine.gpu import Mig, find_gpu_model
from gpulaunch.machine.topology import TableKey, Topology
from gpulaunch.profiles.demand import CurvePoint, Demand
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import replace
from gpulaunch.sharing.speed import Capacity

GIB = 1 << 30
NO_MEMORY = Unfit("how much memory it has is unknown")
VOLTA_ON = Unfit("compute capability 6.1: MPS bounds SMs and memory from 7.0 on")
BOX = box(4)
ALICE, BOB = 1000, 1001
LIGHT, HALF, HEAVY = (
    Demand(name, sm, 5.0, GIB) for name, sm in (("light", 10.0), ("half", 50.0), ("heavy", 95.0))
)


def asking(
    demand: Demand | None,
    gpus: int | None = 1,
    *,
    topology: Topology = BOX,
    sensitive: bool = False,
    unfit: Mapping[str, str] = MappingProxyType({}),
    **fields: Any,
) -> Request:
    """Make a request of alice; without a demand it does not share."""
    fit = {
        gpu.uuid: Capacity(gpu.memory_bytes, 48) for gpu in topology.gpus if gpu.uuid not in unfit
    }
    client = Client(demand, Objective()) if demand else None
    sharing = client and Sharing(client, None, user_id=ALICE, capacities=fit, unfit=dict(unfit))
    return request(gpus, bandwidth_sensitive=sensitive, sharing=sharing, **fields)


def shared(lease_id: str, demand: Demand, *indices: int, **fields: Any) -> Lease:
    """Make a lease of alice, who shares it."""
    group = tuple(sorted(f"GPU-{index}" for index in indices))
    client = Client(demand, Objective())
    share = Share(group, 100, fields.pop("sensitive", False), client, "/tmp/x")
    return lease(lease_id, *indices, share=share, **fields)


def outcome(decision: Decision) -> tuple[object, ...]:
    """Return the GPUs and the jobs they are shared with, or why there are none."""
    if not isinstance(decision, Grant):
        return type(decision), decision.reason
    option = decision.share_option
    return decision.placement.gpus, None if option is None else tuple(
        sorted(lease.id for lease in option.residents)
    )


def decided(
    asked: Request, *leases: Lease, topology: Topology | None = None, **state: Any
) -> tuple[object, ...]:
    return outcome(decide(asked, State(topology or BOX, leases, **state)))


A_OF_TWO = shared("a", HALF, 0, 1)
JOINED = {
    "the first one opens a free GPU": (asking(LIGHT), [], ((0,), ())),
    "the next one joins it": (asking(LIGHT), [shared("a", HALF, 1)], ((1,), ("a",))),
    "whoever does not share is not joined": (asking(LIGHT), [lease("a", 0)], ((1,), ())),
    "nor another user": (asking(LIGHT), [shared("a", LIGHT, 0, user_id=BOB)], ((1,), ())),
    "too much stays apart": (asking(HEAVY), [shared("a", HALF, 0)], ((1,), ())),
    "of several the least used": (
        asking(LIGHT),
        [shared("a", HALF, 0), shared("b", LIGHT, 2)],
        ((2,), ("b",)),
    ),
    "of equals the lowest": (
        asking(LIGHT),
        [shared("b", LIGHT, 2), shared("a", LIGHT, 1)],
        ((1,), ("a",)),
    ),
    "two of two GPUs meet on both": (asking(LIGHT, 2), [shared("a", HALF, 2, 1)], ((1, 2), ("a",))),
    "one of two GPUs is not joined by one of one": (asking(LIGHT), [A_OF_TWO], ((2,), ())),
    "nor one of one by one of two": (asking(LIGHT, 2), [shared("a", HALF, 0)], ((1, 2), ())),
    "three if all are small": (
        asking(LIGHT),
        [shared("a", LIGHT, 0), shared("b", LIGHT, 0)],
        ((0,), ("a", "b")),
    ),
    "a launch inside a member is part of it": (
        asking(LIGHT),
        [shared("a", HALF, 0), shared("b", HALF, 0, ancestors=("a",))],
        ((0,), ("a",)),
    ),
    "one that has outlived it counts for itself": (
        asking(HALF),
        [shared("b", HALF, 0, ancestors=("a",))],
        ((0,), ("b",)),
    ),
    "what a launch inside a member left of its GPUs may be another's": (
        asking(LIGHT, 2),
        [lease("b", 0, share=A_OF_TWO.share, ancestors=("a",)), lease("c", 1)],
        ((2, 3), ()),
    ),
}


@cases(JOINED, "asked", "leases", "want")
def test_whom_a_request_joins(
    asked: Request, leases: list[Lease], want: tuple[object, ...]
) -> None:
    """A request joins its user's jobs on exactly its GPUs if none suffers, or opens free ones."""
    for order in (leases, leases[::-1]):
        assert decided(asked, *order) == want


def test_gpus_that_cannot_be_shared() -> None:
    """A GPU that cannot be shared is given whole, with the reason; one that can is joined."""
    old = asking(LIGHT, unfit={"GPU-0": "compute capability 6.0"})
    assert decided(old) == ((1,), ())  # those that can come first
    others = [lease("a", 1, 2, 3)]
    decision = decide(old, State(BOX, others))
    assert isinstance(decision, Grant)
    assert (decision.placement.gpus, decision.share_option, decision.exclusive_reason) == (
        (0,),
        None,
        "compute capability 6.0",
    )
    assert decided(old, shared("a", LIGHT, 1)) == ((1,), ("a",))
    assert decided(asking(LIGHT, 4, unfit={"GPU-3": "MIG"})) == ((0, 1, 2, 3), None)


def test_gpus_of_another_groups_daemon() -> None:
    """A GPU that another group's daemon still has, though unused, is not opened for sharing."""
    left = lease("b", 0, share=shared("a", HALF, 0, 1).share, ancestors=("a",))
    asked = replace(asking(LIGHT), constraints=(Constraint("--only 1", frozenset({"GPU-1"})),))
    decision = decide(asked, State(BOX, [left]))
    assert isinstance(decision, Grant)
    assert (decision.share_option, decision.exclusive_reason) == (
        None,
        "the MPS daemon of another share group has it still",
    )


def test_unlike_gpus_in_one_group() -> None:
    """What a group of unlike GPUs offers is the least of each."""
    asked = asking(replace(LIGHT, memory_bytes=10 * GIB), 2)
    small = {**asked.sharing.capacities, "GPU-1": Capacity(15 * GIB, 48)}
    asked = replace(asked, sharing=replace(asked.sharing, capacities=small))
    there = shared("a", replace(LIGHT, memory_bytes=6 * GIB), 0, 1)
    assert decided(asked, there, lease("b", 2, 3)) == (
        Wait,
        (
            "2 GPUs requested: 0 of 4 are free, 4 are leased; of those to share: "
            "GPUs 0-1: maximum memory 16384 MiB of at most 15360 MiB"
        ),
    )


def test_what_is_in_the_way() -> None:
    """GPUs that a constraint leaves out or that are used outside are not joined."""
    there = shared("a", LIGHT, 1, name="noisy")
    without = Constraint("--exclude 1", frozenset({"GPU-0", "GPU-2"}))
    assert decided(replace(asking(LIGHT), constraints=(without,)), there) == ((0,), ())
    required = Constraint("--require 2", frozenset({"GPU-2"}))
    assert decided(asking(LIGHT, required=required), there) == ((2,), ())
    used = [OutsideUse("GPU-1", "pid 4, bob")]  # by a member of the group: its lease explains it
    assert decided(asking(LIGHT), there, outside=used) == ((1,), ("a",))


def test_links_matter_to_who_depends_on_them() -> None:
    """A job that depends on links gets none worse than it would alone, nor joins its like.

    The links that it would get alone are those of GPUs it may have, not of all free ones. A job on
    one GPU has no links to depend on, whatever its profile says.
    """
    dgx = machine("dgx1-v100")
    uuids = {gpu.index: gpu.uuid for gpu in dgx.gpus}

    def there(a: int, b: int, *, sensitive: bool = False) -> Lease:
        found = shared("a", LIGHT, a, b, sensitive=sensitive)
        group = tuple(sorted((uuids[a], uuids[b])))
        return replace(found, uuids=(uuids[a], uuids[b]), share=replace(found.share, group=group))

    def asked(*, sensitive: bool) -> Request:
        return asking(LIGHT, 2, topology=dgx, sensitive=sensitive, policy="preserve")

    asks = asked(sensitive=True)
    assert decided(asked(sensitive=False), there(0, 5), topology=dgx) == ((0, 5), ("a",))
    assert decided(asks, there(0, 5), topology=dgx)[1] == ()
    assert decided(asks, there(0, 3), topology=dgx) == ((0, 3), ("a",))
    assert decided(asks, there(0, 3, sensitive=True), topology=dgx)[1] == ()
    others = lease("b", uuids=tuple(uuids[i] for i in range(8) if i not in (0, 5)))
    assert decided(asks, there(0, 5), others, topology=dgx) == ((0, 5), ("a",))
    only = Constraint("--only 0,5,7", frozenset(uuids[i] for i in (0, 5, 7)))
    few = replace(asks, constraints=(only,))
    assert decided(few, there(0, 5), topology=dgx) == ((0, 5), ("a",))
    one = asking(LIGHT, sensitive=True)
    assert decided(one, shared("a", LIGHT, 0, sensitive=True)) == ((0,), ("a",))
    alone = decide(one, State(BOX))
    assert alone.share_option.share.bandwidth_sensitive is False


def test_first_in_first_out() -> None:
    """Sharers do not take a GPU an earlier request waits for, unless it lets smaller ones pass."""
    there = [shared("a", LIGHT, 0), lease("b", 1, 2)]
    state = State(BOX, there, ahead=[ticket(1, 4, range(4), user_id=BOB)])
    want = "1 GPU requested: 1 of 4 is free, but an earlier request for 4 GPUs waits"
    want += "; of those to share: GPU 0: earlier requests wait for it"
    assert outcome(decide(asking(LIGHT), state)) == (Wait, want)
    limited = replace(asking(LIGHT), ends_within_s=60.0)
    assert outcome(decide(limited, replace(state, clock_s=50.0))) == ((0,), ("a",))


SATURATED = tuple(CurvePoint(p, t) for p, t in ((10, 5.0), (20, 9.0), (30, 10.0), (100, 10.0)))


# ------------------------------------------------------------------------------------------ records

CURVED = Demand("job", 30.5, 20.0, GIB, 100.0, SATURATED)


def test_a_record_of_a_share_is_read_as_it_was_written() -> None:
    """A lease comes back from its record with its share, also with keys of later versions."""
    client = Client(CURVED, Objective("product", 2.0, 1.0, 5.0), {"other": 0.25})
    for share in (
        Share(("GPU-0",), 40, True, client, "/tmp/gpulaunch.mps.1000/0a1b2c3d"),
        Share(("GPU-0", "GPU-1"), 100, False, Client(LIGHT)),
        None,
    ):
        want = lease("a1", 0, share=share)
        document = json.loads(json.dumps(want.to_document()))
        assert ("share" in document) == (share is not None)
        for table in (document, document.get("share", {})):  # as later versions may
            table["surprise"] = 1
        assert parse_lease(document, ALICE) == want


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sm_percentage", 0),
        ("sm_percentage", 50.5),
        ("group", ["GPU-1"]),
        ("pipe_directory", "not/absolute"),
        ("objective", {}),
        ("slowdowns", {"vgg": -1.0}),
        ("demand", []),
        ("demand.memory_bytes", "1"),
        ("demand.curve", [["a", 1]]),
        ("demand.curve", [[50, 1], [50, 2]]),
        ("demand.curve", [[50, float("nan")]]),
    ],
)
def test_a_share_that_is_not_understood(path: str, value: object) -> None:
    """A lease whose share cannot be read has its GPUs to itself: nobody joins what is unclear."""
    document = json.loads(
        json.dumps(lease("a1", 0, share=Share(("GPU-0",), 40, True, Client(CURVED))).to_document())
    )
    place = document["share"]
    *above, key = path.split(".")
    for part in above:
        place = place[part]
    place[key] = value
    assert parse_lease(document, ALICE) == lease("a1", 0)


# ------------------------------------------------------------------------------- what can be shared


UNKNOWN = Unfit("its compute capability is unknown")
INSTANCE = {"compute_capability": "8.0", "mig": Mig(0, "GPU-0", 1, "1g.10gb")}
NO_MIG = Unfit("it is a MIG instance, where MPS does not bound memory as it does on whole GPUs")
NEW = {"compute_capability": "9.0"}
SHAREABLE = {
    "a whole GPU of Volta or later": ({"compute_capability": "7.0"}, 550, Capacity(16 * GIB, 48)),
    "CUDA 13.1 takes more clients": (NEW, 590, Capacity(16 * GIB, 60)),
    "the driver before it does not": (NEW, 589, Capacity(16 * GIB, 48)),
    "on a described machine there is no driver": (NEW, None, Capacity(16 * GIB, 48)),
    "an instance": (INSTANCE, 550, NO_MIG),
    "Pascal": ({"compute_capability": "6.1"}, 550, VOLTA_ON),
    "nobody knows what it can": ({}, 550, UNKNOWN),
    "nonsense": ({"compute_capability": "nine"}, 550, UNKNOWN),
    "no memory is known": (NEW | {"memory_bytes": 0}, 550, NO_MEMORY),
}


@cases(SHAREABLE, "gpu", "driver", "want")
def test_which_gpus_can_be_shared(gpu: dict, driver: int | None, want: Capacity | Unfit) -> None:
    """A GPU is shared if architecture and driver let MPS bound its clients; else it says why."""
    assert capacity_of(replace(BOX.gpus[0], **gpu), None, driver) == want


def test_figures_of_a_known_model() -> None:
    """A GPU offers what is known of its model, and the model's capability if NVML is silent."""
    gpu = replace(machine("dgx1-v100").gpus[0], compute_capability=None)
    found = capacity_of(gpu, find_gpu_model(load_gpu_models(), gpu.model), 550)
    assert isinstance(found, Capacity)
    assert (found.sm_count, found.power_limit_w, found.most_clients) == (80, 300, 48)


def test_all_that_a_gpu_is_sold_with() -> None:
    """A job that asks for 16G is limited to what the smallest GPU has that is just sold so."""
    has = parse_size("16G").of_gpu_bytes
    gpus = [replace(gpu, memory_bytes=has) for gpu in machine("dgx1-v100").gpus]
    small = Machine(replace(machine("dgx1-v100"), gpus=gpus), (), TableKey("small", "", ""))
    asked = {"memory": ("--memory", "16G"), "utilization": ("-o", "10,10")}
    found = read_sharing(Options(asked, {}), Profile(), small, "job")
    assert isinstance(found, Sharing)
    assert found.client.demand.memory_bytes == has
