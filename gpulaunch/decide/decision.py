"""The values of a decision: the request, the state that it meets, and what comes of it.

A request has every default filled in; out of it and the state comes a Grant, a Wait or a Refuse,
with the words for why.
"""
# pure: decides on plain values

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from gpulaunch.errors import UsageError, quoted
from gpulaunch.files.units import format_size
from gpulaunch.leases.lease import Client, EngineJob, Lease, Share, Ticket
from gpulaunch.machine.driver import DRIVERS, OutsideUse
from gpulaunch.machine.gpu import Gpu, gpus_named, gpus_text, is_of_profile, parse_mig_profile
from gpulaunch.machine.topology import Topology, counts_as_cuda
from gpulaunch.placement.policies import POLICIES, Placement
from gpulaunch.placement.problem import EQUAL_WEIGHTS, PlacementProblem, Weights
from gpulaunch.profiles.pattern import Pattern
from gpulaunch.records import Record, as_dict, replace

if TYPE_CHECKING:  # few launches share
    from gpulaunch.sharing.caps import Search
    from gpulaunch.sharing.interference import Verdict
    from gpulaunch.sharing.speed import Capacity

_WIDEST_RANGE = 1024
_MAX_DIGITS = 20  # of an index or a range


class Constraint(Record):
    """The GPUs that one option admits.

    Attributes:
        text: the option as it was written, for messages.
        instead: what there is, as a clause for the message that it admits none.
        order: the same in the order of their ranks, if it says one.
    """

    text: str
    uuids: frozenset[str]
    instead: str = ""
    order: tuple[str, ...] = ()


def weights_of(communication: float, interference: float, fragmentation: float) -> Weights:
    """Return weights that sum to 1, from any three numbers of 0 or more that are not all 0.

    Raises:
        UsageError: one is negative or no number, or all are 0.

    Example:
        >>> weights_of(2, 1, 1)
        Weights(communication=0.5, interference=0.25, fragmentation=0.25)
    """
    asked = as_dict(Weights(communication, interference, fragmentation))
    for name, value in asked.items():
        if not (isfinite(value) and value >= 0):
            raise UsageError(f"weight of {name}: asked for {value:g}, a weight is 0 or more")
    largest = max(asked.values())
    if not largest:
        raise UsageError(
            "weights of communication, interference and fragmentation: all are 0, one must be more"
        )
    shares = [value / largest for value in asked.values()]  # their sum is finite
    return Weights(*(share / sum(shares) for share in shares))


class Unfit(Record):
    """The answer that something will not do.

    Attributes:
        may_exist: something might do among what was not tried.
    """

    reason: str
    may_exist: bool = False


class Sharing(Record):
    """The figures of a job that shares its GPUs with other jobs of its user.

    Attributes:
        client: what it uses of a GPU, and its objective.
        sm_percentage: share of SMs that the user asks for, 1-100; None for what is best.
        capacities: what each GPU that can be shared offers, by UUID.
        unfit: why each of the other GPUs cannot be shared, by UUID.
        guest: whether it gives way to the other jobs, by a lower priority.
        holds_the_rest: whether it may hold all memory that is free: of its use a part is known.
        search: what was tried beside the jobs of its last launch; None if nothing was.
        tries: whether it is measured, so that the next caps are tried; else the best so far count.
        is_guess: whether its figures only stand for the part that it asks for.
    """

    client: Client
    sm_percentage: int | None
    user_id: int
    capacities: "Mapping[str, Capacity]"
    unfit: Mapping[str, str]
    guest: bool = False
    holds_the_rest: bool = False
    search: "Search | None" = None
    tries: bool = False
    is_guess: bool = False


class Request(Record):
    """One job's request, complete: every default has been filled in.

    Attributes:
        gpus: number of GPUs, at least 1; None for every GPU that the constraints admit.
        least_gpus: the least number that will do, at most `gpus`; None if no range was asked for.
        required: GPUs that must be among the chosen ones; None for any.
        least_gb_per_s: their least effective bandwidth; 0 for any.
        one_numa_node: they must be next to the same CPUs.
        least_utility: under this utility, 0 to 1, a policy that waits for utility lets the job wait
            (topo-aware-sc17).
        weights: weights of communication, interference and fragmentation in that utility.
        slowdowns: by the other job's profile: how much slower this job is beside it, and it beside
            this one; 0.1 is 10 %.
        sharing: what it brings along if it shares; None if it wants GPUs to itself.
        exclusive_reason: why a job whose user wants to share gets GPUs to itself; None otherwise.
        ends_within_s: seconds within which the job has ended for certain once it has started: its
            time limit, and the time to end it; None without a limit.
        in_order: whether it passes nobody in the queue, and nobody may pass it.
        engine_job: the job of a cluster engine that it is part of, or None. If its ranks divide
            GPUs among themselves, this is the request of all of them.
    """

    gpus: int | None
    pattern: Pattern
    bandwidth_sensitive: bool
    policy: str
    bandwidth_model: str
    constraints: tuple[Constraint, ...] = ()
    required: Constraint | None = None
    nvlink: bool = False
    least_gb_per_s: float = 0.0
    one_numa_node: bool = False
    least_utility: float = 0.0
    weights: Weights = EQUAL_WEIGHTS
    slowdowns: Mapping[str, tuple[float, float]] = {}
    profile: str | None = None
    name: str | None = None
    assumed: tuple[str, ...] = ()
    sharing: Sharing | None = None
    exclusive_reason: str | None = None
    ends_within_s: float | None = None
    in_order: bool = False
    engine_job: EngineJob | None = None
    least_gpus: int | None = None

    @property
    def choosy(self) -> bool:
        """True if it may wait although enough GPUs are free that suit it one by one."""
        waits_for_utility = POLICIES[self.policy].waits_for_utility and self.least_utility > 0
        together = self.required or self.nvlink or self.least_gb_per_s or self.one_numa_node
        return bool(together) or waits_for_utility


def with_count(request: Request, count: int) -> Request:
    """Return a request for a number of GPUs in place of its range."""
    request = replace(request, gpus=count, least_gpus=None)
    if count > 1:
        return request
    # A single GPU has no links.
    return replace(request, nvlink=False, least_gb_per_s=0.0, bandwidth_sensitive=False)


def select_gpus(topology: Topology, names: Iterable[str], option: str) -> tuple[Gpu, ...]:
    """Return the GPUs that the user names.

    A name is an index or a range of them, "card:instance", a UUID or an unambiguous beginning of
    one.

    Args:
        option: the option as the user wrote it, for the message.

    Raises:
        UsageError: a name fits no GPU, or several.
    """
    found: list[Gpu] = []
    for name in names:
        for single in _expand_range(name.strip()):
            found += _find_gpus(topology, single, option)
    return tuple(found)


def _expand_range(name: str) -> list[str]:
    """Return the indices of a range such as "4-6"; a list of the name itself if it is none."""
    first, dash, last = name.partition("-")
    numbers = len(name) < _MAX_DIGITS and first.isdecimal() and last.isdecimal()
    if dash and numbers and int(first) <= int(last) < int(first) + _WIDEST_RANGE:
        return [str(index) for index in range(int(first), int(last) + 1)]
    return [name]


def _find_gpus(topology: Topology, name: str, option: str) -> list[Gpu]:
    """Return the GPU of this name, or all MIG instances of the card of this name."""
    name = str(int(name)) if name.isdecimal() and len(name) < _MAX_DIGITS else name
    instances = [
        gpu for gpu in topology.gpus if gpu.mig and name in (str(gpu.mig.card), gpu.mig.card_uuid)
    ]
    if instances:
        return instances
    found = [gpu for gpu in topology.gpus if name in (gpu.name, gpu.uuid, str(gpu.index))]
    if not found and not name.isdecimal():
        found = [gpu for gpu in topology.gpus if name and gpu.uuid.startswith(name)]
    if len(found) == 1:
        return found
    problem = f"fits {len(found)} GPUs" if found else "is no GPU"
    raise UsageError(
        f"{option}: {quoted(name)} {problem} of {topology.name}, which has "
        f"{gpus_named(topology.gpus)}"
    )


def admit_only(topology: Topology, names: Iterable[str], option: str) -> Constraint:
    """Return the constraint that admits the named GPUs alone."""
    return Constraint(option, frozenset(gpu.uuid for gpu in select_gpus(topology, names, option)))


def admit_all_but(topology: Topology, names: Iterable[str], option: str) -> Constraint:
    """Return the constraint that admits all but the named GPUs."""
    excluded = select_gpus(topology, names, option)
    return Constraint(option, frozenset(gpu.uuid for gpu in topology.gpus if gpu not in excluded))


def check_request(request: Request, topology: Topology) -> None:
    """Refuse a request that no GPUs of this machine could ever meet together.

    Raises:
        UsageError: the machine does not tell what it asks about, or it requires too many GPUs.
    """
    if request.one_numa_node and all(gpu.numa_node is None for gpu in topology.gpus):
        raise UsageError(
            f"numa=strict: which NUMA nodes the GPUs of {topology.name} are next to is not known"
        )
    required, count = request.required, request.gpus
    if required and count is not None and len(required.uuids) > count:
        raise UsageError(
            f"{required.text}: {len(required.uuids)} GPUs are required, and {count} requested"
        )


def admit_memory(topology: Topology, memory_bytes: int, option: str) -> Constraint:
    """Return the constraint that admits GPUs with at least this much memory.

    Raises:
        UsageError: nobody knows how much memory they have.
    """
    largest = max(gpu.memory_bytes for gpu in topology.gpus)
    if not largest:
        raise UsageError(f"{option}: how much memory the GPUs of {topology.name} have is not known")
    found = [gpu.uuid for gpu in topology.gpus if gpu.memory_bytes >= memory_bytes]
    size = f"{format_size(largest)} ({largest // 10**8 / 10:g} GB)"
    return Constraint(option, frozenset(found), f"the largest has {size}")


def admit_model(topology: Topology, text: str, option: str) -> Constraint:
    """Return the constraint that admits GPUs whose product name contains a text, in any case.

    A MIG profile at its end, such as "1g.10gb", admits the instances with these slices and this
    memory, and no others.
    """
    name, _, last = text.rpartition(" ")
    asked = parse_mig_profile(last)
    wanted = name.removesuffix("MIG").strip() if asked else text
    found = [gpu for gpu in topology.gpus if wanted.casefold() in gpu.model.casefold()]
    if asked:
        found = [gpu for gpu in found if gpu.mig and is_of_profile(gpu.mig.profile, asked)]
    models = ", ".join(dict.fromkeys(gpu.model for gpu in topology.gpus))
    return Constraint(option, frozenset(gpu.uuid for gpu in found), f"they are {models}")


def admit_visible(topology: Topology, value: str) -> Constraint:
    """Return the constraint of a CUDA_VISIBLE_DEVICES, or another driver's variable, that is set.

    CUDA reads the list up to the first entry that names no GPU, such as -1, and hides that one and
    the rest. It counts the GPUs that it can use, so a number is a place among these, where others
    are out of its reach. The order of the list is that of ranks.
    """
    by_place = [gpu.uuid for gpu in topology.gpus]
    counted = not counts_as_cuda(topology) and not any(gpu.mig for gpu in topology.gpus)
    uuids = []
    for name in map(str.strip, value.split(",")):
        if counted and name.isdecimal() and len(name) < _MAX_DIGITS:
            if int(name) >= len(by_place):
                break
            uuids.append(by_place[int(name)])
            continue
        try:
            uuids += [gpu.uuid for gpu in _find_gpus(topology, name, "")]
        except UsageError:
            break
    variable = DRIVERS[topology.driver].visible_variable
    hidden = "it hides them all: unset it"
    return Constraint(f"{variable}={value}", frozenset(uuids), hidden, tuple(dict.fromkeys(uuids)))


class State(Record):
    """The machine as a request meets it.

    Attributes:
        outside: use of GPUs that no lease explains.
        within: the live lease that this launch runs inside of, or None; its GPUs are then the whole
            machine.
        ahead: earlier requests in the queue, of whatever GPUs, in their order.
        clock_s: seconds since boot, for how long those may be passed.
        unlocked: ids of the leases that no process holds any more, but a container may hold.
    """

    topology: Topology
    leases: Sequence[Lease] = ()
    outside: Sequence[OutsideUse] = ()
    within: Lease | None = None
    ahead: Sequence[Ticket] = ()
    clock_s: float = 0.0
    unlocked: frozenset[str] = frozenset()

    @property
    def neighbours(self) -> list[Lease]:
        """The leases of other jobs; those that this launch runs inside of are its own."""
        own = (self.within.id, *self.within.ancestors) if self.within else ()
        return [lease for lease in self.leases if lease.id not in own]


class ShareOption(Record):
    """GPUs that a job could share, and what becomes of them if it does.

    Attributes:
        group: UUIDs of the GPUs, ascending.
        residents: leases of the jobs that share them already; empty for a new group.
        verdict: what the interference rule says of residents and newcomer together, in this order.
        refusal: why the job must not share them; None if it may.
        share: what it would have of them then, as its lease records it, without the directory of
            the MPS daemon; None if it must not share them.
    """

    group: tuple[str, ...]
    residents: tuple[Lease, ...]
    verdict: "Verdict"
    refusal: str | None
    share: Share | None = None


class Grant(Record):
    """Yes: these GPUs.

    Attributes:
        share_option: the share group that they are, or become; None if the job has them to itself.
        exclusive_reason: why a job that would share has them to itself; None if it shares, or would
            not.
        own: indices of those that the launch's rank has, if the placement is that of all ranks of a
            step; None if the launch has them all.
    """

    reason: str
    placement: Placement
    problem: PlacementProblem
    share_option: ShareOption | None = None
    exclusive_reason: str | None = None
    own: tuple[int, ...] | None = None

    @property
    def indices(self) -> tuple[int, ...]:
        """Indices of the GPUs that the launch has, in rank order."""
        return self.placement.gpus if self.own is None else self.own

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs that the launch has, in rank order."""
        by_index = {gpu.index: gpu for gpu in self.problem.topology.gpus}
        return [by_index[index] for index in self.indices]

    @property
    def names(self) -> str:
        """Their names, as people write them: "3,0,1"."""
        return ",".join(gpu.name for gpu in self.gpus)


class Wait(Record):
    """Not now: too few of the GPUs that would do are free, or earlier requests come first.

    Attributes:
        behind: the earlier request that this one comes after, or None.
        is_barred: whether enough GPUs are free, and only earlier requests are in the way.
    """

    reason: str
    behind: Ticket | None = None
    is_barred: bool = False


class Refuse(Record):
    """Never, on this machine with these constraints."""

    reason: str


Decision = Grant | Wait | Refuse


def too_many_text(
    request: Request, topology: Topology, scope: int, admitted: int, within: Lease | None
) -> str:
    """Return why a request for more GPUs than there are can never start.

    Args:
        admitted: number of those that satisfy the request's constraints.
    """
    asked = f"{'every GPU' if request.gpus is None else gpus_text(request.gpus)} requested"
    if request.pattern.ranks:
        asked = f"pattern {request.pattern.name} has {request.pattern.ranks} ranks"
    place_name = f"lease {within.id}" if within else topology.name
    if admitted == scope:
        return f"{asked}: {place_name} has {scope}"
    some = f"{asked}: {admitted} of {place_name}'s {scope}"
    options = ", ".join(constraint.text for constraint in request.constraints)
    if not options:
        return f"{some} are whole GPUs, the others MIG instances"
    found = "; ".join(one.instead for one in request.constraints if not one.uuids and one.instead)
    return f"{some} satisfy {options}{': ' if found else ''}{found}"


def _free_text(free: int, admitted: int, *, narrowed: bool) -> str:
    of_all = f"{free} of {admitted}{' admitted' if narrowed else ''}"
    return f"{of_all} {'is' if free == 1 else 'are'} free"


def queued_text(
    count: int, free: int, admitted: int, rivals: Sequence[Ticket], *, narrowed: bool
) -> str:
    """Return why a request waits although enough GPUs are free."""
    earlier = "an earlier request" if len(rivals) == 1 else f"{len(rivals)} earlier requests"
    wanted = gpus_text(sum(ticket.gpus for ticket in rivals))
    verb = "waits" if len(rivals) == 1 else "wait"
    found = _free_text(free, admitted, narrowed=narrowed)
    return f"{gpus_text(count)} requested: {found}, but {earlier} for {wanted} {verb}"


def too_few_text(
    count: int,
    free: int,
    admitted: int,
    users: Sequence[OutsideUse],
    *,
    narrowed: bool,
    unfit: Sequence[str] = (),
) -> str:
    """Return why too few GPUs can be had.

    Args:
        users: the use of GPUs without a lease that has them, once for each GPU.
        narrowed: whether constraints exclude some GPUs in reach.
        unfit: why GPUs that nobody holds are out of service, once for each.
    """
    leased = admitted - free - len(users) - len(unfit)
    parts = [_free_text(free, admitted, narrowed=narrowed)]
    if leased:
        parts.append(f"{leased} {'is' if leased == 1 else 'are'} leased")
    for is_stray, where in ((False, "outside gpulaunch ({})"), (True, "by {}")):
        some = [use.who for use in users if bool(use.stray) == is_stray]
        if some:
            verb = "is" if len(some) == 1 else "are"
            names = "; ".join(dict.fromkeys(some))
            parts.append(f"{len(some)} {verb} in use {where.format(names)}")
    if unfit:
        verb = "is" if len(unfit) == 1 else "are"
        parts.append(f"{len(unfit)} {verb} out of service ({'; '.join(unfit)})")
    return f"{gpus_text(count)} requested: {', '.join(parts)}"


def best_text(placement: Placement, policy: str, problem: PlacementProblem) -> str:
    """Return why these GPUs were chosen."""
    of_all = f"{placement.candidates:,} candidates"
    if placement.candidates == 1:
        return "the only choice"
    if placement.chosen_by_policy:
        useful = "" if placement.utility is None else f", utility {placement.utility:.2f}"
        return f"what policy {policy.replace('_', '-')} makes of {of_all}{useful}"
    if not placement.by:
        return f"lowest indices of {of_all}"
    value = getattr(placement.scores, placement.by[0])
    if value is None:
        return f"as good as any of {of_all}"
    most = "the most of those tried of" if problem.too_many else "the most of"
    return f"{value:.4g} GB/s {placement.by[0].replace('_', ' ')}, {most} {of_all}"
