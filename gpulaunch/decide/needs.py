"""What a request's wishes mean on a machine where jobs run: groups, bounds, and who to stay away from."""
# pure: decides on plain values

from collections.abc import Sequence
from itertools import chain

from gpulaunch.decide.placement.problem import Needs, PlacementProblem
from gpulaunch.decide.request import Request
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.machine.topology import Topology
from gpulaunch.sharing.slowdown import interference

_ROUNDING = 1e-9  # three times a third fits


def needs_of(
    request: Request,
    topology: Topology,
    choosable: Sequence[Gpu],
    count: int,
    leases: Sequence[Lease],
) -> Needs:
    """What a set of GPUs must have for this request.

    In several machines a job that fits into one of them stays in one, unless its tasks are to be
    spread (topo-aware-sc17 4.4).

    Args:
        request: what is asked.
        topology: the machine, or several.
        choosable: GPUs that may be taken.
        count: how many will be.
        leases: all live ones.
    """
    wishes = request.wishes
    asked = wishes.required.uuids if wishes.required else ()
    required = frozenset(gpu.index for gpu in topology.gpus if gpu.uuid in asked)
    at_most = [*_host_bounds(request, topology, leases)]
    if wishes.one_per_node:
        at_most += [(nodes, 1) for nodes in _groups(topology, numa=False)]
    return Needs(
        required=required,
        within=_within(request, topology, choosable, count, required, at_most),
        at_most=tuple(at_most),
        nvlink=wishes.nvlink,
        least_gb_per_s=wishes.least_gb_per_s,
    )


def _within(
    request: Request,
    topology: Topology,
    choosable: Sequence[Gpu],
    count: int,
    required: frozenset[int],
    at_most: Sequence[tuple[frozenset[int], int]],
) -> tuple[frozenset[int], ...]:
    wishes = request.wishes
    if wishes.one_numa_node:
        return _groups(topology, numa=True)
    nodes = _groups(topology, numa=False)
    if len(nodes) == 1 or wishes.one_per_node:
        return ()
    indices = {gpu.index for gpu in choosable}
    fits = any(required <= node and _room(node & indices, at_most) >= count for node in nodes)
    return nodes if wishes.single_node or fits else ()


def _room(gpus: frozenset[int], at_most: Sequence[tuple[frozenset[int], int]]) -> int:
    """How many of some GPUs may be taken."""
    bound = [min(len(gpus & group), most) for group, most in at_most]
    return sum(bound) + sum(not any(gpu in group for group, _ in at_most) for gpu in gpus)


def _groups(topology: Topology, *, numa: bool) -> tuple[frozenset[int], ...]:
    """The GPUs of each machine, or next to each NUMA node of one."""
    groups: dict[tuple[int, int | None], set[int]] = {}
    for gpu in topology.gpus:
        if not numa or gpu.numa_node is not None:
            groups.setdefault((gpu.node, gpu.numa_node if numa else None), set()).add(gpu.index)
    return tuple(frozenset(group) for group in groups.values())


def _host_bounds(
    request: Request, topology: Topology, leases: Sequence[Lease]
) -> list[tuple[frozenset[int], int]]:
    """How many more GPUs each NUMA node's memory can serve (topo-aware-sc17 4.3: t_bw <= p_bw)."""
    asked = request.wishes.host_gb_per_s
    if not asked:
        return []
    taken = {
        gpu.index: _moved([lease for lease in leases if gpu.uuid in lease.uuids])
        for gpu in topology.gpus
    }
    carries = {gpu.index: gpu.host_gb_per_s for gpu in topology.gpus}
    bounds = []
    for group in _groups(topology, numa=True):
        memory = max(carries[gpu] for gpu in group)
        if memory:
            left = memory - sum(taken[gpu] for gpu in group)
            bounds.append((group, max(0, int(left / asked + _ROUNDING))))
    return bounds


def _moved(leases: Sequence[Lease]) -> float:
    """What the jobs on one GPU move; what runs inside a lease is part of what that lease moves."""
    outermost = [
        lease for lease in leases if not any(other.id in lease.ancestors for other in leases)
    ]
    families = [
        [lease, *(inner for inner in leases if lease.id in inner.ancestors)] for lease in outermost
    ]
    return sum(max(lease.host_gb_per_s for lease in family) for family in families)


def kept_apart(request: Request, topology: Topology, leases: Sequence[Lease]) -> set[str]:
    """GPUs where a job runs beside that this one is to stay apart from, or that is to stay apart from this one.

    Beside is: on the same socket, or in the same machine if there are several.
    """
    others = to_avoid(request, leases)
    if not others:
        return set()
    taken = set(chain.from_iterable(lease.uuids for lease in others))
    several = len(_groups(topology, numa=False)) > 1
    places = {_place(gpu, several=several) for gpu in topology.gpus if gpu.uuid in taken}
    return {gpu.uuid for gpu in topology.gpus if _place(gpu, several=several) in places}


def to_avoid(request: Request, leases: Sequence[Lease]) -> list[Lease]:
    """The leases of jobs that this one is to stay apart from, and of those that are to stay apart from it."""
    own = {request.name, request.profile} - {None}
    return [
        lease
        for lease in leases
        if {lease.name, lease.profile}.intersection(request.wishes.apart_from)
        or own.intersection(lease.apart_from)
    ]


def _place(gpu: Gpu, *, several: bool) -> tuple[int, int | None]:
    return gpu.node, None if several else gpu.numa_node


def expected_slowdown(
    request: Request, topology: Topology, leases: Sequence[Lease]
) -> dict[int, float]:
    """For each GPU the mean slowdown of the jobs on its socket and of this one, if it came there.

    Source: topo-aware-sc17 Eq. 4; see utility.interference.
    """
    slowdowns = request.utility.slowdowns
    if not slowdowns:
        return {}
    socket_of = {gpu.uuid: (gpu.node, gpu.numa_node) for gpu in topology.gpus}
    met: dict[tuple[int, int | None], list[tuple[float, float]]] = {}
    for lease in leases:
        for socket in {socket_of[uuid] for uuid in lease.uuids if uuid in socket_of}:
            met.setdefault(socket, []).append(slowdowns.get(lease.profile or "", (0.0, 0.0)))
    return {
        gpu.index: interference([max(own for own, _ in pairs), *(theirs for _, theirs in pairs)])
        for gpu in topology.gpus
        if (pairs := met.get((gpu.node, gpu.numa_node)))
    }


def begun_beside(topology: Topology, leases: Sequence[Lease]) -> dict[int, int]:
    """For each GPU on whose socket jobs run, the place of the last of them in the order in which all began, from 1.

    Args:
        topology: the machine.
        leases: of all jobs, the one that began first first.
    """
    socket_of = {gpu.uuid: (gpu.node, gpu.numa_node) for gpu in topology.gpus}
    last = {
        socket_of[uuid]: n
        for n, lease in enumerate(leases, 1)
        for uuid in lease.uuids
        if uuid in socket_of
    }
    return {
        gpu.index: last[socket_of[gpu.uuid]] for gpu in topology.gpus if socket_of[gpu.uuid] in last
    }


def unmet(request: Request, count: int, problem: PlacementProblem, machine: str | None) -> str:
    """Why no set of enough GPUs is what the job needs.

    Args:
        request: what is asked.
        count: how many GPUs.
        problem: what there was to choose from.
        machine: its name, if it was all idle; None if it is what is free now.
    """
    asked = f"{gpus_text(count)} requested"
    among = (
        f"{len(problem.admitted)} free"
        if machine is None
        else f"{len(problem.admitted)} that {machine} has"
    )
    wishes = request.wishes
    missing = sorted(problem.needs.required.difference(problem.admitted))
    if wishes.required and missing:
        verb = "is" if len(missing) == 1 else "are"
        state = "free" if machine is None else "admitted"
        return f"{asked} with {wishes.required.text}: {problem.format_ranks(missing)} {verb} not {state}"
    so = _together(request)
    if wishes.least_gb_per_s:
        best = problem.best_effective()
        if best is not None:
            least = f"{wishes.least_gb_per_s:g} GB/s at least"
            return (
                f"{asked}{so}{',' if so else ''} with {least}: the best of the {among} reach "
                f"{best:.4g}"
            )
    return f"{asked}{so}: " + (
        f"none of the {among} is" if count == 1 else f"no {count} of the {among} are"
    )


def _together(request: Request) -> str:
    """What the chosen GPUs must be, in words."""
    wishes = request.wishes
    words = [
        f"with {wishes.required.text}" if wishes.required else "",
        "joined by NVLink" if wishes.nvlink else "",
        "in one NUMA node" if wishes.one_numa_node else "",
        "in one machine" if wishes.single_node else "",
        "each in a machine of its own" if wishes.one_per_node else "",
        f"with {wishes.host_gb_per_s:g} GB/s of host memory each" if wishes.host_gb_per_s else "",
    ]
    return "".join(f"{' ' if i == 0 else ', '}{word}" for i, word in enumerate(filter(None, words)))
