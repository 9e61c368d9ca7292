"""What a job needs of its GPUs together: decisions on named machines, and against trying all."""

import random
from collections.abc import Iterator, Sequence
from itertools import combinations

from test_policies import MICRO, Machine, reached
from values import cases, lease, request
from values import machine as load

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Decision, Grant, Refuse, Request, State, admit_only
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.topology import Topology
from gpulaunch.placement.problem import Weights
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.records import replace

DGX1, MINSKY, PCIE8 = map(load, ("dgx1-v100", "power8-minsky", "pcie-8gpu-workstation"))
PLAIN = request(2, policy="preserve")


def asking(gpus: int = 2, **wishes: object) -> Request:
    return replace(PLAIN, gpus=gpus, **wishes)


def held(machine: Topology, gpus: Sequence[int], **fields: object) -> Lease:
    """Make a lease of GPUs of a named machine."""
    uuid = {gpu.index: gpu.uuid for gpu in machine.gpus}
    named = {"id_": "a" + "x".join(map(str, gpus)), "uuids": tuple(uuid[gpu] for gpu in gpus)}
    return lease(**(named | fields))


def outcome(decision: Decision) -> list[int] | str:
    """Return the GPUs of a grant; else "Wait: " or "Refuse: " and the reason."""
    if isinstance(decision, Grant):
        return sorted(decision.placement.gpus)
    return f"{type(decision).__name__}: {decision.reason}"


def answer(request: Request, machine: Topology, *busy: Sequence[int]) -> list[int] | str:
    """Decide while others have these GPUs."""
    return beside(request, machine, *(held(machine, gpus) for gpus in busy))


def beside(request: Request, machine: Topology, *leases: Lease) -> list[int] | str:
    """Decide while these leases are held."""
    return outcome(decide(request, State(machine, leases)))


def patient(least: float, gpus: int = 2, **slowdowns: tuple[float, float]) -> Request:
    return replace(asking(gpus), policy="topo_aware_p", least_utility=least, slowdowns=slowdowns)


ACROSS = admit_only(MINSKY, ["0", "2"], "")
UNJOINED = (0, 1, 2, 4, 5, 7)
"""What leaves GPUs 3 and 6 of a DGX-1, which no NVLink joins."""
ANSWERS = {
    "where PCIe is left, a job with a least bandwidth waits": (
        *(asking(2, least_gb_per_s=40.0), DGX1, UNJOINED),
        "Wait: 2 GPUs requested with 40 GB/s at least: the best of the 2 free reach 12",
    ),
    "more than the machine's links carry is refused": (
        *(asking(4, least_gb_per_s=99.0), MINSKY, ()),
        (
            "Refuse: 4 GPUs requested with 99 GB/s at least: the best of the 4 that power8-minsky "
            "has reach 6"
        ),
    ),
    "by topo-aware-p a job waits where its utility would be too small": (
        *(patient(0.5), MINSKY, (0, 2)),
        "Wait: 2 GPUs requested with a utility of 0.5: the best found, 1,3, has 0.18",
    ),
    "by topo-aware it starts": (replace(patient(0.5), policy="topo_aware"), MINSKY, (0, 2), [1, 3]),
    "what the idle machine does not have is refused": (
        *(replace(patient(0.5), constraints=(ACROSS,)), MINSKY, ()),
        (
            "Refuse: 2 GPUs requested with a utility of 0.5: the best found on the idle machine, "
            "0,2, has 0.18"
        ),
    ),
    "required GPUs are taken if they have it": (
        replace(patient(0.1), required=ACROSS),
        *(MINSKY, ()),
        [0, 2],
    ),
}


@cases(ANSWERS, "asked", "machine", "busy", "want")
def test_answer(
    asked: Request, machine: Topology, busy: Sequence[int], want: list[int] | str
) -> None:
    assert answer(asked, machine, busy) == want


# ------------------------------------------------------------------------------------ least utility


def test_least_utility_beside_others() -> None:
    """Slowdowns count: an empty socket is preferred to waiting, then the socket begun last.

    Of one GPU it is the mean of this job's worst slowdown and all others', here 0.4 and 0.3.
    """
    request = patient(0.5, 1, noisy=(0.4, 0.3))
    one, other = (held(MINSKY, (gpu,), profile="noisy") for gpu in (0, 2))
    assert beside(request, MINSKY, one) == [2]
    want = "Wait: 1 GPU requested with a utility of 0.5: the best found, 3, has 0.29"
    assert beside(request, MINSKY, one, other) == want
    assert beside(patient(0.5, 1, quiet=(0.4, 0.3)), MINSKY, one, other) == [3]


def test_least_utility_comes_before_the_system() -> None:
    """Where the system's best is of too little use to the job, it gets the best for itself."""
    request = replace(patient(0.5), weights=Weights(0.05, 0.0, 0.95))
    assert answer(replace(request, policy="topo_aware"), PCIE8, (1, 2, 3)) == [0, 4]
    assert answer(request, PCIE8, (1, 2, 3)) == [4, 5]


def test_a_job_waits_for_what_was_not_tried() -> None:
    """A job is refused only after all was tried; else it waits, and is told what was not."""
    torus = load("torus-2d-16")
    apart = admit_only(torus, ["0", "10"], "")
    got = answer(replace(patient(1.0, 4), required=apart), torus)
    assert got.startswith("Refuse: ")
    assert "too many" not in got
    all_to_all = PATTERNS["all_to_all"]
    apart = admit_only(torus, [str(gpu) for gpu in (0, 2, 5, 7, 8, 10, 13, 15)], "")
    got = answer(replace(patient(1.0, 9), required=apart, pattern=all_to_all), torus)
    assert got.startswith("Wait: ")
    assert got.endswith("; there are too many placements to try them all")


# -------------------------------------------------------------------------------------- all at once


def satisfies(request: Request, machine: Topology, gpus: Sequence[int]) -> bool:
    """Return whether these GPUs have all that the request wants of them together, written anew."""
    chosen = [gpu for gpu in machine.gpus if gpu.index in gpus]
    sockets = [gpu.numa_node for gpu in chosen]
    linked = {frozenset((link.a, link.b)) for link in machine.links if link.nvlink_count}
    together = reached(gpus[0], gpus, lambda a, b: frozenset((a, b)) in linked)
    return (
        (request.required is None or request.required.uuids <= {gpu.uuid for gpu in chosen})
        and (not request.nvlink or together == set(gpus))
        and (not request.one_numa_node or len(set(sockets)) == 1)
        and (
            not request.least_gb_per_s
            or Machine(machine).cut([tuple(gpus)])[0] >= request.least_gb_per_s * MICRO
        )
    )


def any_situation(rng: random.Random) -> tuple[Request, Topology, list[Lease]]:
    machine = rng.choice([DGX1, MINSKY, PCIE8])
    count = rng.choice([2, 2, 3, 4])
    free = [gpu.index for gpu in machine.gpus]
    leases = []
    while len(free) > max(count, 6) or rng.random() < 0.3:
        gpus = rng.sample(free, min(len(free), rng.randint(1, 3)))
        free = [gpu for gpu in free if gpu not in gpus]
        leases.append(held(machine, gpus))
    required = admit_only(machine, [str(rng.choice(machine.gpus).index)], "--require")
    wishes = {
        "required": rng.choice((required, None, None)),
        "nvlink": rng.random() < 0.3,
        "least_gb_per_s": rng.choice([0.0, 0.0, 9.0, 20.0, 36.0, 40.0]),
        "one_numa_node": rng.random() < 0.3,
    }
    policy = rng.choice(["preserve", "baseline", "best_fit", "topo_aware"])
    return replace(asking(count, **wishes), policy=policy), machine, leases


def sets_that_would_do(
    request: Request, machine: Topology, leases: Sequence[Lease]
) -> Iterator[tuple[int, ...]]:
    taken = {uuid for one in leases for uuid in one.uuids}
    left = [gpu.index for gpu in machine.gpus if gpu.uuid not in taken]
    chosen = combinations(left, request.gpus or 1)
    return (gpus for gpus in chosen if satisfies(request, machine, gpus))


def test_against_trying_everything() -> None:
    """A job starts if and only if free GPUs have all it needs; it is refused if none ever will."""
    for seed in range(60):
        request, machine, leases = any_situation(random.Random(seed))
        decision = decide(request, State(machine, leases))
        would_do = sets_that_would_do(request, machine, leases)
        if isinstance(decision, Grant):
            assert tuple(sorted(decision.placement.gpus)) in would_do, seed
        else:
            possible = any(sets_that_would_do(request, machine, ()))
            assert (any(would_do), isinstance(decision, Refuse)) == (False, not possible), seed
