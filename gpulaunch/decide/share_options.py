"""The share groups that a job could join, and the best of them for it."""
# pure: decides on plain values

from collections.abc import Iterable, Iterator, Sequence

from gpulaunch.decide.decision import Grant, Request, ShareOption, Sharing, State, Unfit
from gpulaunch.decide.needs import (
    Reach,
    admitted_gpus,
    choose,
    out_of_service,
    pose_problem,
    reach_of,
)
from gpulaunch.errors import printable
from gpulaunch.leases.lease import Client, Lease, Share, is_inside, share_groups
from gpulaunch.leases.queue import barring, queued
from gpulaunch.machine.gpu import Gpu, gpus_named
from gpulaunch.records import replace
from gpulaunch.sharing.caps import Caps, Search
from gpulaunch.sharing.interference import Verdict, find_filled, judge
from gpulaunch.sharing.speed import Capacity, least_of, pace

_DIGITS = 3  # decimals of a predicted slowdown that make a difference


def best_option(request: Request, state: State, reach: Reach, count: int) -> Grant | Unfit:
    """Return the share group to join, or why no group will do; the reason is empty without groups.

    Joining comes before GPUs that are free, so that those stay whole; but a job that depends on
    links is not sent to worse ones than it would get alone.
    """
    refusals = []
    for option, found in _assess_options(request, state, reach, count):
        if isinstance(found, Grant):
            return found
        refusals.append(f"{_gpu_names(state, option)}: {found.reason}")
    return Unfit("; ".join(refusals))


def assess_share_groups(request: Request, state: State) -> list[tuple[ShareOption, str]]:
    """Return each share group that a request could join, the best first, with its GPUs' names."""
    admitted = admitted_gpus(request, state.topology, state.within)
    reach = reach_of(request, state, admitted, admitted)
    groups = []
    for option, found in _assess_options(request, state, reach, request.gpus or len(admitted)):
        refusal = found.reason if isinstance(found, Unfit) else None
        groups.append((replace(option, refusal=refusal), _gpu_names(state, option)))
    return groups


def _assess_options(
    request: Request, state: State, reach: Reach, count: int
) -> Iterator[tuple[ShareOption, Grant | Unfit]]:
    """Yield each share group of exactly `count` admitted GPUs, the best to join first.

    With it comes the grant there, or why there is none.
    """
    choosable = _choosable(state, reach)
    admitted = {gpu.uuid for gpu in choosable}
    options = []
    # Nobody can join the group of another user: MPS serves one user at a time, and lets the others
    # wait for ever.
    own = [lease for lease in state.neighbours if lease.user_id == _sharing(request).user_id]
    for group, members in share_groups(own).items():
        if len(group) != count or not admitted.issuperset(group):
            continue
        if not set(group).isdisjoint(reach.used):
            continue
        if _is_used_by_others(group, members, state.neighbours):
            continue
        options.append(assess_group(request, group, members))
    for option in sorted(options, key=lambda option: _rank(request, option)):
        yield option, _place_in_group(request, state, reach, option, count)


def _choosable(state: State, reach: Reach) -> list[Gpu]:
    """Return the admitted GPUs that a request may share, whether or not anybody uses them."""
    barred = out_of_service(state)
    return [gpu for gpu in reach.admitted if gpu.uuid not in barred]


def _is_used_by_others(
    group: Sequence[str], members: Sequence[Lease], leases: Sequence[Lease]
) -> bool:
    """Return whether a lease that is neither a member nor inside one has GPUs of the group."""
    for lease in leases:
        overlaps = not set(group).isdisjoint(lease.uuids)
        if overlaps and lease not in members and not is_inside(lease, members):
            return True
    return False


def _gpu_names(state: State, option: ShareOption) -> str:
    """Return the GPUs of a share group as people call them: "GPU 0" or "GPUs 0-1"."""
    return gpus_named(gpu for gpu in state.topology.gpus if gpu.uuid in option.group)


def _place_in_group(
    request: Request, state: State, reach: Reach, option: ShareOption, count: int
) -> Grant | Unfit:
    if option.refusal:
        return Unfit(option.refusal)
    if _is_barred(request, state, reach, option.group):
        return Unfit("earlier requests wait for it")
    gpus = [gpu for gpu in _choosable(state, reach) if gpu.uuid in option.group]
    unoccupied = [gpu for gpu in state.topology.gpus if gpu in reach.free or gpu in gpus]
    problem = pose_problem(request, state, unoccupied, gpus, count)
    placement = choose(request, problem)
    if isinstance(placement, Unfit):
        return placement
    if request.bandwidth_sensitive:
        alone = _effective_bandwidth_alone(request, state, reach, count)
        if (placement.scores.effective_bandwidth or 0.0) < alone:
            return Unfit("free GPUs have faster links")
    beside = ", ".join(
        f"{lease.name or lease.profile or 'a job'} ({lease.id})" for lease in option.residents
    )
    return Grant(f"shared with {beside}", placement, problem, option)


def _is_barred(request: Request, state: State, reach: Reach, group: Sequence[str]) -> bool:
    """Return whether earlier requests have a right to a group, by the UUIDs of its GPUs.

    A job that joins one takes no GPU from those that wait for free ones.
    """
    uuids = [gpu.uuid for gpu in reach.admitted] if request.in_order else group
    ahead = queued(state.ahead, state.within)
    return bool(barring(ahead, uuids, request, 0, reach.busy_until_s, state.clock_s))


def _effective_bandwidth_alone(request: Request, state: State, reach: Reach, count: int) -> float:
    """Return the effective bandwidth of the free GPUs that it would get, GB/s; 0 without any."""
    admitted = _choosable(state, reach)
    choosable = [gpu for gpu in reach.free if gpu in admitted]
    if count > len(choosable):
        return 0.0
    found = choose(request, pose_problem(request, state, reach.free, choosable, count))
    return 0.0 if isinstance(found, Unfit) else found.scores.effective_bandwidth or 0.0


def open_group(request: Request, state: State, grant: Grant) -> Grant:
    """Return a grant of free GPUs with the share group that they become, if they can be shared."""
    uuids = [gpu.uuid for gpu in state.topology.gpus if gpu.index in grant.placement.gpus]
    option = assess_group(request, uuids, ())
    refusal = option.refusal
    for lease in state.neighbours:
        # A launch inside a job may outlive it, and holds some of its GPUs; the MPS daemon, which
        # serves all GPUs of the group, stays with it.
        if lease.share and not set(uuids).isdisjoint(lease.share.group):
            refusal = "the MPS daemon of another share group has it still"
    if refusal:
        return replace(grant, exclusive_reason=refusal)
    return replace(grant, share_option=option)


def assess_group(request: Request, group: Sequence[str], residents: Sequence[Lease]) -> ShareOption:
    """Return what becomes of some GPUs if a job comes to share them."""
    sharing = _sharing(request)
    shares = _shares_of(residents)
    capacity = least_of(sharing.capacities, group)
    clients = [*(share.client for share in shares), sharing.client]
    held = [*(share.sm_percentage for share in shares), sharing.sm_percentage]
    verdict = None
    if sharing.search and sharing.sm_percentage is None:
        verdict = _next_step(sharing, sharing.search, shares, group, capacity)
    verdict = verdict or judge(clients, capacity, held)
    refusal = _refusal(request, group, shares, verdict)
    share = None if refusal else _share_of(request, group, shares, verdict)
    return ShareOption(tuple(sorted(group)), tuple(residents), verdict, refusal, share)


def _next_step(
    sharing: Sharing,
    search: Search,
    shares: Sequence[Share],
    group: Iterable[str],
    capacity: Capacity,
) -> Verdict | None:
    """Return what becomes of some GPUs by the caps that the search for the job's set has next.

    Its other jobs may be there with these caps, or are yet to come. None if others are there, or
    these with other caps, or the trials are of other GPUs.
    """
    own = sharing.client
    held = [(share.client.demand.name, share.sm_percentage) for share in shares]
    is_whole = sorted([own.demand.name, *(name for name, _ in held)]) == list(search.names)
    if not search.gpus.issuperset(group):
        return None
    all_clients = [Client(demand, own.objective) for demand in search.demands]

    def judged(caps: Caps) -> Verdict:
        return judge(all_clients, capacity, caps, search.reached, search.expected(caps, capacity))

    def is_allowed(caps: Caps) -> bool:
        return judged(caps).compatible

    # Who is there may have the caps of a launch before: then these are taken once more.
    choices = [search.best(is_allowed), *filter(is_allowed, search.tried)]
    if sharing.tries:
        choices.insert(0, search.next_caps(is_allowed))
    if not any(choices):  # all launches cost somebody too much, and so would each step from there
        return judged(search.most) if is_whole else None
    for caps in filter(None, choices):
        left = search.left_of(caps, held)
        cap = next((cap for name, cap in left if name == own.demand.name), None)
        if cap is not None:
            break
    else:
        return None
    jobs = zip(search.names, caps, strict=True)
    speeds = dict(zip(jobs, search.expected(caps, capacity), strict=True))
    have = [*held, (own.demand.name, cap)]
    verdict = judge(
        [*(share.client for share in shares), own],
        capacity,
        [cap for _, cap in have],
        search.reached if is_whole else 0.0,
        [speeds[job] for job in have] if is_whole else (),
    )
    return replace(verdict, why=_explain_step(search, caps)) if verdict.compatible else verdict


def _explain_step(search: Search, caps: Caps) -> str:
    """Return why a job gets its cap, in a sentence."""
    others = " and ".join(map(printable, search.names))
    what = " + ".join(map(str, caps))
    if caps in search.trials:
        return f"{what} % for {others} were the best of {len(search.trials)} launches"
    return f"launch {len(search.trials) + 1} of {others} tries {what} %"


def _refusal(
    request: Request, group: Sequence[str], shares: Sequence[Share], verdict: Verdict
) -> str | None:
    sharing = _sharing(request)
    for uuid in group:
        if uuid in sharing.unfit:
            return sharing.unfit[uuid]
    if _depends_on_links(request, group) and any(share.bandwidth_sensitive for share in shares):
        return "it depends on the links between its GPUs, and so does a job that is there"
    if verdict.reasons or shares or sharing.sm_percentage is not None:
        return "; ".join(verdict.reasons) or None
    # Under MPS it would be bound in memory, and leave others nothing that the rule lets them use.
    return find_filled(sharing.client)


def _share_of(
    request: Request, group: Sequence[str], shares: Sequence[Share], verdict: Verdict
) -> Share:
    """Return what the job would have of some GPUs beside others' shares of them."""
    sharing = _sharing(request)
    client = sharing.client
    if sharing.holds_the_rest:
        free = least_of(sharing.capacities, group).memory_bytes
        free -= sum(share.client.demand.memory_bytes for share in shares)
        memory_bytes = max(client.demand.memory_bytes, free)
        client = replace(client, demand=replace(client.demand, memory_bytes=memory_bytes))
    promised = [share.promised_pace for share in shares]
    at = None if sharing.is_guess or None in promised else verdict.pace
    return Share(
        tuple(sorted(group)),
        verdict.caps[-1],
        _depends_on_links(request, group),
        client,
        guest=sharing.guest,
        promised_pace=min(1.0, at.speeds[-1]) if at else None,
    )


def _depends_on_links(request: Request, group: Sequence[str]) -> bool:
    return request.bandwidth_sensitive and len(group) > 1


def _rank(request: Request, option: ShareOption) -> tuple[object, ...]:
    """Return the sort key of an option; the least is the best to join.

    It is where all are predicted to be slowed down least in the mean, without caps, which differ
    little between groups.
    """
    sharing = _sharing(request)
    capacity = least_of(sharing.capacities, option.group)
    demands = [share.client.demand for share in _shares_of(option.residents)]
    at = pace([*demands, sharing.client.demand], capacity)
    return option.refusal is not None, round(at.antt, _DIGITS), option.group


def _shares_of(residents: Iterable[Lease]) -> list[Share]:
    return [lease.share for lease in residents if lease.share]


def _sharing(request: Request) -> Sharing:
    assert request.sharing is not None  # noqa: S101  for the type checker
    return request.sharing
