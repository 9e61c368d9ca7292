"""What a job needs of its GPUs together: decisions on named machines, and against trying all."""

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, product

import pytest
from values import lease, request

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Decision, Grant, Refuse, Situation, Wait
from gpulaunch.decide.needs import expected_slowdown, gpus_to_avoid
from gpulaunch.decide.placement.problem import Weights
from gpulaunch.decide.request import (
    Request,
    UtilityTerms,
    Wishes,
    admit_all_but,
    admit_only,
    check_wishes,
)
from gpulaunch.errors import UsageError
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.topology import Topology
from gpulaunch.records import replace

DGX1, MINSKY, CLUSTER, PCIE8 = (
    load_described_machine(name)[0]
    for name in ("dgx1-v100", "power8-minsky", "minsky-cluster", "pcie-8gpu-workstation")
)
PLAIN = request(2, policy="preserve")


def asking(gpus: int | None = 2, **wishes: object) -> Request:
    return replace(PLAIN, gpus=gpus, wishes=Wishes(**wishes))


def held(machine: Topology, gpus: Sequence[int], **fields: object) -> Lease:
    """Make a lease of GPUs of a named machine."""
    uuid = {gpu.index: gpu.uuid for gpu in machine.gpus}
    named = {"id_": "a" + "x".join(map(str, gpus)), "uuids": tuple(uuid[gpu] for gpu in gpus)}
    return lease(**(named | fields))


def outcome(decision: Decision) -> tuple[object, ...]:
    """Return Grant with the GPUs, or Wait or Refuse with the reason."""
    if isinstance(decision, Grant):
        return (Grant, sorted(decision.placement.gpus))
    return (type(decision), decision.reason)


def answer(request: Request, machine: Topology, *busy: Sequence[int]) -> tuple[object, ...]:
    """Decide while others have these GPUs."""
    return outcome(decide(request, Situation(machine, [held(machine, gpus) for gpus in busy])))


def beside(request: Request, machine: Topology, *leases: Lease) -> tuple[object, ...]:
    """Decide while these leases are held."""
    return outcome(decide(request, Situation(machine, leases)))


# ---------------------------------------------------------------------------- one NUMA node, NVLink


@pytest.mark.parametrize(
    ("sentence", "gpus", "machine", "busy", "want"),
    [
        ("the other socket, though this one has free GPUs", 3, DGX1, (0, 1), (Grant, [4, 6, 7])),
        (
            "two free on each socket are no three",
            3,
            DGX1,
            (0, 1, 4, 5),
            (Wait, "3 GPUs requested in one NUMA node: no 3 of the 4 free are"),
        ),
        (
            "five can never be where sockets have four",
            5,
            DGX1,
            (),
            (Refuse, "5 GPUs requested in one NUMA node: no 5 of the 8 that dgx1-v100 has are"),
        ),
    ],
)
def test_one_numa_node(
    sentence: str, gpus: int, machine: Topology, busy: Sequence[int], want: tuple[object, ...]
) -> None:
    """With -o numa=strict all GPUs are next to the same CPUs; else the job waits or is refused."""
    assert answer(asking(gpus, one_numa_node=True), machine, busy) == want, sentence


@pytest.mark.parametrize(
    ("sentence", "gpus", "machine", "busy", "want"),
    [
        (
            "3 and 6 of a DGX-1 have none between them",
            2,
            DGX1,
            (0, 1, 2, 4, 5, 7),
            (Wait, "2 GPUs requested joined by NVLink: no 2 of the 2 free are"),
        ),
        (
            "a machine without",
            2,
            PCIE8,
            (),
            (
                Refuse,
                (
                    "2 GPUs requested joined by NVLink: no 2 of the 8 that pcie-8gpu-workstation "
                    "has are"
                ),
            ),
        ),
        ("one GPU needs no link", 1, PCIE8, (), (Grant, [0])),
    ],
)
def test_nvlink(
    sentence: str, gpus: int, machine: Topology, busy: Sequence[int], want: tuple[object, ...]
) -> None:
    """With --nvlink the GPUs are connected by NVLink, each with each or through others of them."""
    assert answer(asking(gpus, nvlink=True), machine, busy) == want, sentence


# ---------------------------------------------------------------------------------- least bandwidth


@pytest.mark.parametrize(
    ("sentence", "gpus", "least", "machine", "busy", "want"),
    [
        (
            "where PCIe is left, the job waits",
            2,
            40.0,
            DGX1,
            (0, 1, 2, 4, 5, 7),
            (Wait, "2 GPUs requested with 40 GB/s at least: the best of the 2 free reach 12"),
        ),
        (
            "no two have more",
            2,
            40.5,
            DGX1,
            (),
            (
                Refuse,
                (
                    "2 GPUs requested with 40.5 GB/s at least: the best of the 8 that dgx1-v100 "
                    "has reach 40"
                ),
            ),
        ),
        (
            "across machines there is the network",
            5,
            2.0,
            CLUSTER,
            (),
            (
                Refuse,
                (
                    "5 GPUs requested with 2 GB/s at least: the best of the 20 that minsky-cluster "
                    "has reach 1.25"
                ),
            ),
        ),
    ],
)
def test_least_bandwidth(
    sentence: str,
    gpus: int,
    least: float,
    machine: Topology,
    busy: Sequence[int],
    want: tuple[object, ...],
) -> None:
    """With a least bandwidth a job waits rather than take poor links; if all are, it is refused."""
    assert answer(asking(gpus, least_gb_per_s=least), machine, busy) == want, sentence


@pytest.mark.parametrize(
    "policy", ["baseline", "best_fit", "greedy", "preserve", "best_effort", "topo_aware"]
)
def test_least_bandwidth_by_every_policy(policy: str) -> None:
    """Whatever the policy would have taken, it takes nothing under the least bandwidth."""
    got = decide(
        replace(asking(2, least_gb_per_s=40.0), policy=policy), Situation(DGX1, [held(DGX1, (0,))])
    )
    assert isinstance(got, Grant)
    assert got.placement.scores.effective_bandwidth == 40.0


# ------------------------------------------------------------------------------------ required GPUs


def test_required() -> None:
    """A required GPU is among the chosen ones, with those that suit it best."""
    assert answer(asking(2, required=admit_only(DGX1, ["6"], "--require 6")), DGX1) == (
        Grant,
        [5, 6],
    )
    assert answer(asking(2, required=admit_only(DGX1, ["6", "1"], "--require 6,1")), DGX1) == (
        Grant,
        [1, 6],
    )


# ---------------------------------------------------------------------------- apart from other jobs


@pytest.mark.parametrize(
    ("sentence", "gpus", "theirs", "want"),
    [
        ("by name", 2, {"name": "noisy"}, (Grant, [4, 7])),
        (
            "too few are left elsewhere",
            5,
            {"name": "noisy"},
            (
                Wait,
                (
                    "5 GPUs requested: 4 of 8 are to be had, 1 is leased, 3 are next to a job to "
                    "stay apart from"
                ),
            ),
        ),
        ("they want to be apart from this one", 2, {"apart_from": ("me",)}, (Grant, [4, 7])),
        ("or from its profile", 2, {"apart_from": ("other", "mine")}, (Grant, [4, 7])),
    ],
)
def test_apart(
    sentence: str, gpus: int, theirs: dict[str, object], want: tuple[object, ...]
) -> None:
    """A job stays out of the socket of one that it stays apart from, whichever of them says so."""
    request = replace(asking(gpus, apart_from=("noisy",)), name="me", profile="mine")
    assert beside(request, DGX1, held(DGX1, (0,), **theirs)) == want, sentence


def test_apart_from_jobs_without_a_name() -> None:
    """Two jobs without name and profile have nothing in common."""
    assert gpus_to_avoid(PLAIN, DGX1, [held(DGX1, (0,), apart_from=("noisy",))]) == set()
    assert gpus_to_avoid(asking(apart_from=("noisy",)), DGX1, [held(DGX1, (0,))]) == set()


def test_apart_on_several_machines() -> None:
    """On several machines the whole machine is kept free of the job, not its socket alone."""
    noisy = held(CLUSTER, (0,), name="noisy")
    assert beside(asking(2, apart_from=("noisy",)), CLUSTER, noisy) == (Grant, [4, 5])
    assert beside(asking(2), CLUSTER, noisy) == (Grant, [2, 3])


# -------------------------------------------------------------------------------------- host memory


@pytest.mark.parametrize(
    ("sentence", "gpus", "asked", "theirs", "want"),
    [
        ("both of a socket share its 115.2 GB/s", 2, 57.6, {}, (Grant, [0, 1])),
        ("so that two of 60 are on both sockets", 2, 60.0, {}, (Grant, [0, 2])),
        ("and no more than that", 1, 15.2, {0: 100.0}, (Grant, [1])),
        ("a job of which nothing is known takes nothing", 1, 115.2, {0: 0.0}, (Grant, [1])),
        (
            "both sockets are needed, and one is taken",
            2,
            60.0,
            {0: 100.0},
            (Wait, "2 GPUs requested with 60 GB/s of host memory each: no 2 of the 3 free are"),
        ),
    ],
)
def test_host_memory(
    sentence: str, gpus: int, asked: float, theirs: dict[int, float], want: tuple[object, ...]
) -> None:
    """A socket's jobs together move no more than its memory carries (topo-aware-sc17 4.3)."""
    leases = [held(MINSKY, (gpu,), host_gb_per_s=moved) for gpu, moved in theirs.items()]
    assert beside(asking(gpus, host_gb_per_s=asked), MINSKY, *leases) == want, sentence


def test_host_memory_of_which_nothing_is_known() -> None:
    """Where the memory's bandwidth is unknown, wishing for some is an error that says so."""
    with pytest.raises(UsageError, match="what the host memory of dgx1-v100 carries is not known"):
        check_wishes(Wishes(host_gb_per_s=10.0), DGX1, 2)


# --------------------------------------------------------------------------------- several machines

HALF = (0, 1, 4, 5, 8, 9, 12, 13, 16, 17)
"""One socket of each machine of the cluster."""


@pytest.mark.parametrize(
    ("sentence", "gpus", "wishes", "busy", "want"),
    [
        ("a job that fits into one machine is in one", 4, {}, (0, 1), (Grant, [4, 5, 6, 7])),
        ("one that does not is in several", 5, {}, (), (Grant, [0, 1, 2, 3, 4])),
        ("so is one that does not fit now", 3, {}, HALF, (Grant, [2, 3, 6])),
        (
            "unless it must not",
            3,
            {"single_node": True},
            HALF,
            (Wait, "3 GPUs requested in one machine: no 3 of the 10 free are"),
        ),
        ("each in one of its own", 5, {"one_per_node": True}, (), (Grant, [0, 4, 8, 12, 16])),
        (
            "three have, four are asked for",
            4,
            {"one_per_node": True},
            range(8),
            (Wait, "4 GPUs requested each in a machine of its own: no 4 of the 12 free are"),
        ),
        (
            "there are five machines",
            6,
            {"one_per_node": True},
            (),
            (
                Refuse,
                (
                    "6 GPUs requested each in a machine of its own: no 6 of the 20 that "
                    "minsky-cluster has are"
                ),
            ),
        ),
    ],
)
def test_several_machines(
    sentence: str, gpus: int, wishes: dict[str, bool], busy: Sequence[int], want: tuple[object, ...]
) -> None:
    """A job that fits takes one machine of several; if asked, only ever one, or a GPU of each."""
    assert answer(asking(gpus, **wishes), CLUSTER, busy) == want, sentence


def test_single_node_on_one_machine() -> None:
    """On one machine every job is in one, and two GPUs are never each in a machine of its own."""
    assert answer(asking(8, single_node=True), DGX1) == (Grant, list(range(8)))
    assert answer(asking(1, one_per_node=True), DGX1)[0] is Grant
    want = "2 GPUs requested each in a machine of its own: no 2 of the 8 that dgx1-v100 has are"
    assert answer(asking(2, one_per_node=True), DGX1) == (Refuse, want)


# ------------------------------------------------------------------------------------ least utility


def patient(least: float, gpus: int = 2, **slowdowns: tuple[float, float]) -> Request:
    return replace(
        asking(gpus), policy="topo_aware_p", utility=UtilityTerms(least=least, slowdowns=slowdowns)
    )


def test_least_utility() -> None:
    """By topo-aware-p a job waits where its utility would be too small; by topo-aware it starts."""
    busy = (0, 2)
    want = "2 GPUs requested with a utility of 0.5: the best found, 1,3, has 0.18"
    assert answer(patient(0.5), MINSKY, busy) == (Wait, want)
    assert answer(replace(patient(0.5), policy="topo_aware"), MINSKY, busy) == (Grant, [1, 3])
    assert answer(patient(0.1), MINSKY, busy) == (Grant, [1, 3])
    assert answer(patient(0.5), MINSKY, (0,)) == (Grant, [2, 3])


def test_least_utility_beside_others() -> None:
    """Slowdowns count: an empty socket is preferred to waiting, then the socket begun last."""
    request = patient(0.5, 1, noisy=(0.4, 0.3))
    one, other = (held(MINSKY, (gpu,), profile="noisy") for gpu in (0, 2))
    assert beside(request, MINSKY, one) == (Grant, [2])
    want = "1 GPU requested with a utility of 0.5: the best found, 3, has 0.29"
    assert beside(request, MINSKY, one, other) == (Wait, want)
    assert beside(patient(0.5, 1, quiet=(0.4, 0.3)), MINSKY, one, other) == (Grant, [3])


def test_expected_slowdown() -> None:
    """A GPU's figure is the mean of what its socket's jobs would suffer and this job's worst."""
    request = patient(0.5, 1, noisy=(0.4, 0.3), quiet=(0.1, 0.03))
    leases = [held(MINSKY, (0,), profile="noisy"), held(MINSKY, (1,), profile="quiet")]
    got = expected_slowdown(request, MINSKY, leases)
    assert got == {gpu: pytest.approx((0.4 + 0.3 + 0.03) / 3) for gpu in (0, 1)}


def test_least_utility_that_never_comes() -> None:
    """A job that asks for more utility than the idle machine has is refused, not left waiting."""
    across = replace(patient(0.5), constraints=(admit_only(MINSKY, ["0", "2"], "--only 0,2"),))
    assert answer(across, MINSKY) == (
        Refuse,
        "2 GPUs requested with a utility of 0.5: the best found on the idle machine, 0,2, has 0.18",
    )


TORUS = load_described_machine("torus-2d-16")[0]


def test_least_utility_comes_before_the_system() -> None:
    """Where the system's best is of too little use to the job, it gets the best for itself."""
    terms = UtilityTerms(least=0.5, weights=Weights(0.05, 0.0, 0.95))
    request = replace(patient(0.5), utility=terms)
    assert answer(replace(request, policy="topo_aware"), PCIE8, (1, 2, 3)) == (Grant, [0, 4])
    assert answer(request, PCIE8, (1, 2, 3)) == (Grant, [4, 5])


def test_a_job_waits_for_what_was_not_tried() -> None:
    """A job is refused only after all was tried; else it waits, and is told what was not."""
    untried = "; there are too many placements to try them all"
    apart = Wishes(required=admit_only(TORUS, ["0", "10"], ""))
    nodes, _ = load_described_machine("minsky-cluster")
    far = Wishes(required=admit_only(nodes, ["0", "6"], ""))
    decision, reason = answer(replace(patient(1.0), wishes=far), nodes)
    assert (decision, str(reason).endswith(untried)) == (Wait, True)
    decision, reason = answer(replace(patient(1.0, 4), wishes=apart), TORUS)
    assert (decision, untried in str(reason)) == (Refuse, False)


def test_least_utility_of_required_gpus() -> None:
    """Required GPUs that the policy would not have chosen need the least utility as well."""
    required = admit_only(MINSKY, ["1", "2"], "--require 1,2")
    assert answer(replace(patient(0.5), wishes=Wishes(required=required)), MINSKY)[0] is not Grant
    assert answer(replace(patient(0.1), wishes=Wishes(required=required)), MINSKY) == (
        Grant,
        [1, 2],
    )


# ----------------------------------------------------------------------------------- inside a lease


def inside(request: Request, parent: Lease, *others: Lease) -> tuple[object, ...]:
    return outcome(decide(request, Situation(MINSKY, [parent, *others], within=parent)))


def test_host_memory_inside_a_lease() -> None:
    """Jobs inside a lease move what the lease moves in host memory, so it is not counted twice."""
    parent = held(MINSKY, (0, 1), host_gb_per_s=57.6)
    assert inside(asking(2, host_gb_per_s=57.6), parent) == (Grant, [0, 1])


def test_host_memory_of_nested_leases() -> None:
    """What a job inside a lease moves is part of what that lease moves, and counts once."""
    parent = held(MINSKY, (0,), host_gb_per_s=57.6)
    child = held(MINSKY, (0,), id_="child", ancestors=(parent.id,), host_gb_per_s=57.6)
    others = held(MINSKY, (2, 3))
    assert beside(asking(1, host_gb_per_s=57.6), MINSKY, parent, child, others) == (Grant, [1])


def test_apart_inside_a_lease() -> None:
    """A job inside a lease is next to that one by its own will."""
    parent = held(MINSKY, (0, 1), profile="mine", apart_from=("mine",))
    assert inside(replace(asking(1), profile="mine"), parent) == (Grant, [0])


# -------------------------------------------------------------------------------- what can never be


@pytest.mark.parametrize(
    ("sentence", "request_", "want"),
    [
        ("nothing but NVLink", asking(3, nvlink=True), Refuse),
        ("in one NUMA node", asking(3, one_numa_node=True), Refuse),
        ("on links that it does not have", asking(2, least_gb_per_s=37.0), Refuse),
        ("which it could have", asking(2, least_gb_per_s=36.0), Wait),
        ("as many as there are", asking(4), Wait),
    ],
)
def test_what_can_never_be(sentence: str, request_: Request, want: type) -> None:
    """What even the idle machine does not have is refused at once, however few GPUs are free."""
    assert answer(request_, MINSKY, (0, 1, 2))[0] is want, sentence
    assert answer(request_, MINSKY, range(4))[0] is want, sentence


# -------------------------------------------------------------------------------------- all at once


def effective_gb_per_s(machine: Topology, gpus: Sequence[int]) -> float:
    """Return the narrowest way to part the GPUs, over NVLink if that joins them, written anew."""
    links = {(link.a, link.b): link for link in machine.links if link.a in gpus and link.b in gpus}
    nvlink = {
        pair: link.nvlink_planned_gb_per_s if link.nvlink_count else 0.0
        for pair, link in links.items()
    }
    hop = {pair: max(nvlink[pair], link.pcie_gb_per_s) for pair, link in links.items()}
    cuts = [
        [pair for pair in links if (pair[0] in side) != (pair[1] in side)]
        for size in range(1, len(gpus))
        for side in combinations(gpus, size)
    ]
    over_nvlink = min(sum(nvlink[pair] for pair in cut) for cut in cuts)
    if not over_nvlink:  # the ring leaves NVLink somewhere, and goes by the best way there
        cuts = [cut for cut in cuts if not any(nvlink[pair] for pair in cut)]
    return max(over_nvlink, min(max(hop[pair] for pair in cut) for cut in cuts))


def satisfies(
    request: Request, machine: Topology, leases: Sequence[Lease], gpus: Sequence[int]
) -> bool:
    """Return whether these GPUs have all that the request wants of them together, written anew."""
    wishes = request.wishes
    chosen = [gpu for gpu in machine.gpus if gpu.index in gpus]
    sockets = [(gpu.node, gpu.numa_node) for gpu in chosen]
    nodes = [gpu.node for gpu in chosen]
    moved = dict.fromkeys(sockets, 0.0)
    for gpu in machine.gpus:
        if (gpu.node, gpu.numa_node) in moved:
            moved[gpu.node, gpu.numa_node] += sum(
                one.host_gb_per_s for one in leases if gpu.uuid in one.uuids
            )
    for socket in sockets:
        moved[socket] += wishes.host_gb_per_s
    linked = {frozenset((link.a, link.b)) for link in machine.links if link.nvlink_count}
    reached = {gpus[0]}
    for _ in gpus:
        reached |= {b for a, b in product(reached, gpus) if frozenset((a, b)) in linked}
    return (
        (wishes.required is None or wishes.required.uuids <= {gpu.uuid for gpu in chosen})
        and (not wishes.nvlink or len(reached) == len(gpus))
        and (not wishes.one_numa_node or len(set(sockets)) == 1)
        and (not wishes.single_node or len(set(nodes)) == 1)
        and (not wishes.one_per_node or len(set(nodes)) == len(nodes))
        and (not wishes.host_gb_per_s or all(total <= 115.2 + 1e-6 for total in moved.values()))
        and (
            not wishes.least_gb_per_s
            or effective_gb_per_s(machine, gpus) >= wishes.least_gb_per_s - 1e-6
        )
    )


def any_situation(rng: random.Random) -> tuple[Request, Topology, list[Lease]]:
    machine = rng.choice([DGX1, MINSKY, CLUSTER, PCIE8])
    count = rng.choice([2, 2, 3, 4])
    free = [gpu.index for gpu in machine.gpus]
    leases = []
    while len(free) > max(count, 6) or rng.random() < 0.3:
        gpus = rng.sample(free, min(len(free), rng.randint(1, 3)))
        free = [gpu for gpu in free if gpu not in gpus]
        leases.append(held(machine, gpus, host_gb_per_s=rng.choice([0.0, 20.0, 35.0])))
    required = [str(rng.choice(machine.gpus).index)]
    wishes = {
        "required": admit_only(machine, required, f"--require {required[0]}")
        if rng.random() < 0.3
        else None,
        "nvlink": rng.random() < 0.3,
        "least_gb_per_s": rng.choice([0.0, 0.0, 9.0, 20.0, 36.0, 40.0]),
        "one_numa_node": rng.random() < 0.3,
        "host_gb_per_s": rng.choice([0.0, 30.0, 60.0]) if machine in (MINSKY, CLUSTER) else 0.0,
    }
    together = rng.choice([None, None, "single_node", "one_per_node"])
    if together:
        wishes[together] = True
    request = replace(
        asking(count, **wishes),
        policy=rng.choice(["preserve", "baseline", "best_fit", "topo_aware"]),
    )
    if rng.random() < 0.3:
        request = replace(
            request,
            constraints=(
                admit_all_but(machine, [str(rng.choice(machine.gpus).index)], "--exclude"),
            ),
        )
    return request, machine, leases


def sets_that_would_do(
    request: Request, machine: Topology, leases: Sequence[Lease]
) -> Iterator[tuple[int, ...]]:
    taken = {uuid for one in leases for uuid in one.uuids}
    left = [
        gpu.index
        for gpu in machine.gpus
        if gpu.uuid not in taken
        and all(gpu.uuid in constraint.uuids for constraint in request.constraints)
    ]
    chosen = combinations(left, request.gpus or 1)
    return (gpus for gpus in chosen if satisfies(request, machine, leases, gpus))


@pytest.mark.parametrize("seed", range(60))
def test_against_trying_everything(seed: int) -> None:
    """A job starts if and only if free GPUs have all it needs; it is refused if none ever will."""
    request, machine, leases = any_situation(random.Random(seed))
    decision = decide(request, Situation(machine, leases))
    if isinstance(decision, Grant):
        gpus = sorted(decision.placement.gpus)
        assert satisfies(request, machine, leases, gpus)
        assert tuple(gpus) in set(sets_that_would_do(request, machine, leases))
        return
    assert next(sets_that_would_do(request, machine, leases), None) is None
    possible = next(sets_that_would_do(request, machine, ()), None) is not None
    assert possible or isinstance(decision, Refuse)
    assert not (possible and isinstance(decision, Refuse))


def test_a_preference_for_one_machine_gives_way() -> None:
    """One machine is a preference: a job gets what it requires in two machines if need be."""
    required = admit_only(CLUSTER, ["0", "4"], "--require 0,4")
    assert answer(asking(2, required=required), CLUSTER) == (Grant, [0, 4])
    together = answer(asking(2, required=required, single_node=True), CLUSTER)
    assert together[0] is Refuse
    busy = [held(CLUSTER, (first,), host_gb_per_s=100.0) for first in range(0, 20, 2)]
    assert beside(asking(3, host_gb_per_s=70.0), CLUSTER, *busy)[0] is Wait
    some = [held(CLUSTER, (first,), host_gb_per_s=100.0) for first in range(0, 20, 4)]
    assert beside(asking(2, host_gb_per_s=70.0), CLUSTER, *some) == (Grant, [2, 6])
