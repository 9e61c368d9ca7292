"""Why this decision: who was left out, what set the winner apart, and what would work instead."""
# pure: decides on plain values

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Decision, Grant, Request, ShareOption, State, with_count
from gpulaunch.decide.needs import (
    admitted_gpus,
    leased_until_s,
    out_of_service,
    used_outside,
)
from gpulaunch.decide.share_options import assess_share_groups
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.gpu import Gpu, gpus_named, gpus_text
from gpulaunch.placement.fabric import UNIT
from gpulaunch.placement.policies import POLICIES, Placement, ranking
from gpulaunch.placement.problem import ScoreName
from gpulaunch.records import Record, replace

_FEWER = 16
"""Smaller numbers of GPUs that are tried as alternatives."""


class Excluded(Record):
    """A GPU that could not be chosen.

    Attributes:
        why: the reason, such as "leased by alice: train (c3d9528f5152)" or "--exclude 3".
    """

    gpu: Gpu
    why: str


class Alternative(Record):
    """A request that would be granted now.

    Attributes:
        instead: what to change, such as "drop --nvlink".
        gpus: what it would get, by index in rank order.
        effective_bandwidth: effective bandwidth of those, GB/s; None if there is none.
    """

    instead: str
    gpus: tuple[int, ...]
    effective_bandwidth: float | None


class Explanation(Record):
    """All that there is to say about a decision.

    Attributes:
        excluded: GPUs that could not be chosen, each with its reason.
        candidates: the best candidates side by side, the winner first; empty unless granted.
        reason: what made the winner win, or why there is none.
        alternatives: the nearest requests that would work; empty if granted.
        if_idle: what the idle machine would give, if that is faster than what is granted.
        sharing: each share group as an option for the job, with the names of its GPUs; last the
            group that it opens. Empty if it does not share.
        deciding: the policy's first score, and those that put the candidates in their order.
    """

    excluded: list[Excluded]
    candidates: list[Placement]
    reason: str
    alternatives: list[Alternative]
    if_idle: Alternative | None = None
    sharing: Sequence[tuple[ShareOption, str]] = ()
    deciding: tuple[ScoreName, ...] = ()


def explain(
    request: Request,
    state: State,
    decision: Decision,
    limit: int,
    user_name: Callable[[int], str],
) -> Explanation:
    """Explain a decision that was made in this state."""
    left_out = list_excluded(request, state, user_name)
    shared = _list_share_groups(request, state, decision) if request.sharing else []
    if not isinstance(decision, Grant):
        most = len(state.topology.gpus) - len(left_out)
        return Explanation(
            left_out,
            [],
            decision.reason,
            find_alternatives(request, state, most),
            sharing=shared,
        )
    if decision.share_option and decision.share_option.residents:
        left_out = [one for one in left_out if one.gpu.uuid not in decision.share_option.group]
    problem, by = decision.problem, decision.placement.by
    ranked = list(islice(ranking(problem, request.policy), max(limit, 2)))
    figures = [problem.scores_by(problem.mask(candidate.gpus), by) for candidate in ranked]
    reason = _explain_winner(request, decision, ranked, figures)
    if problem.mapper.gave_up:
        reason += "; there were too many mappings to try them all"
    return Explanation(
        left_out,
        ranked[:limit],
        reason,
        [],
        _find_better_if_idle(request, state, decision),
        shared,
        _deciding_scores(by, figures[:limit]),
    )


def _place_of_more(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the place of the first score of which a candidate has more than another, or None."""
    more = [a > b for a, b in zip(one, other, strict=True)]
    return more.index(True) if True in more else None


def _deciding_scores(
    by: Sequence[ScoreName], figures: Sequence[tuple[int, ...]]
) -> tuple[ScoreName, ...]:
    """Return the scores that put each candidate before the next one, and the first score."""
    places = {0, *(_place_of_more(one, other) for one, other in pairwise(figures))}
    return tuple(name for place, name in enumerate(by) if place in places)


def _list_share_groups(
    request: Request, state: State, decision: Decision
) -> list[tuple[ShareOption, str]]:
    """Return the share groups that there are, and last the one that the grant opens."""
    found = assess_share_groups(request, state)
    opens = decision.share_option if isinstance(decision, Grant) else None
    if opens and not opens.residents:
        gpus = [gpu for gpu in state.topology.gpus if gpu.uuid in opens.group]
        found.append((opens, gpus_named(gpus)))
    return found


def _find_better_if_idle(request: Request, state: State, grant: Grant) -> Alternative | None:
    """Return what a job that cares for links would get on the idle machine, if that is faster."""
    found = grant.placement.scores.effective_bandwidth
    if found is None or not grant.problem.sensitive:
        return None
    if request.least_gpus:
        request = with_count(request, len(grant.placement.gpus))
    idle = decide(request, State(state.topology, within=state.within))
    best = idle.placement.scores.effective_bandwidth if isinstance(idle, Grant) else None
    if not isinstance(idle, Grant) or best is None or best <= found:
        return None
    return _alternative_of(f"-o min_bandwidth={best:.4g} --wait", idle)


def list_excluded(
    request: Request, state: State, user_name: Callable[[int], str]
) -> list[Excluded]:
    """Return every GPU of the machine that this request cannot get now, with the first reason."""
    topology, within = state.topology, state.within
    leased = leased_until_s(topology, state.leases, within, request.engine_job)
    holder = {uuid: lease for lease in state.leases for uuid in lease.held_from(request.engine_job)}
    used = used_outside(state, leased)
    unfit = out_of_service(state)
    admitted = {gpu.uuid for gpu in admitted_gpus(request, topology, within)}

    def find_reason(gpu: Gpu) -> str:
        if within and gpu.uuid not in within.uuids:
            return f"not of lease {within.id}"
        for constraint in request.constraints:
            if gpu.uuid not in constraint.uuids:
                return constraint.text
        if gpu.uuid not in admitted:
            return "a MIG instance, and whole GPUs would do"
        if gpu.uuid in leased:
            lease = holder.get(gpu.uuid) or (holder.get(gpu.mig.card_uuid) if gpu.mig else None)
            return f"leased by {_job_text(lease, user_name)}" if lease else "leased"
        if gpu.uuid in used:
            use = used[gpu.uuid]
            what = "in use by" if use.stray else "in use outside gpulaunch:"
            return f"{'out of service:' if gpu.uuid in unfit else what} {use.who}"
        return ""

    every = [Excluded(gpu, find_reason(gpu)) for gpu in topology.gpus]
    return [excluded for excluded in every if excluded.why]


def _job_text(lease: Lease, user_name: Callable[[int], str]) -> str:
    job = lease.name or lease.profile
    owner = user_name(lease.user_id)
    return f"{owner}: {job} ({lease.id})" if job else f"{owner} ({lease.id})"


# ---------------------------------------------------------------------- what made the winner win


def _explain_winner(
    request: Request, grant: Grant, ranked: list[Placement], figures: list[tuple[int, ...]]
) -> str:
    """Return why the first candidate won, by the scores of each that the policy compares."""
    winner = grant.problem.format_set(ranked[0].gpus)
    if grant.share_option and grant.share_option.residents:
        return f"{winner} is {grant.reason}"
    if grant.placement.candidates == 1:
        group = " in one NUMA node" if request.one_numa_node else " in one machine"
        where = group if grant.problem.within else ""
        return f"{winner} is the only set of free GPUs that fits{where}"
    policy = request.policy.replace("_", "-")
    if grant.placement.chosen_by_policy:
        utility = grant.placement.utility
        useful = "" if utility is None else f", of utility {utility:.2f} to the job"
        return f"{winner} is what policy {policy} makes{useful}; it compares no candidates"
    if not grant.placement.by:
        return f"{winner} has the lowest indices, which is all that policy {policy} looks at"
    if len(ranked) == 1:
        return _explain_lone_winner(grant, winner)
    return _compare(grant, winner, grant.problem.format_set(ranked[1].gpus), *figures[:2])


def _compare(
    grant: Grant, winner: str, rival: str, mine: tuple[int, ...], other: tuple[int, ...]
) -> str:
    """Return what sets the winner apart from the runner-up, in words."""
    by, place = grant.placement.by, _place_of_more(mine, other)
    tried = " of those tried" if grant.problem.too_many else ""
    won = f"{winner}: the most {_word(by[0])}{tried} ({mine[0] / UNIT:.4g} GB/s)"
    if place is None:
        return f"{won}; {rival} is equal in all, {winner} has the lower indices"
    has, had = abs(mine[place]) / UNIT, abs(other[place]) / UNIT
    if place == 0:
        return f"{won}; next is {rival} with {had:.4g}"
    if by[place] == "sockets":
        return f"{won}; {rival} has as much, but on {had:.0f} sockets instead of {has:.0f}"
    if by[place] == "fragmentation":
        share = f"{100 * had:.0f} % free instead of {100 * has:.0f} %"
        return f"{won}; {rival} has as much, but on emptier sockets ({share})"
    less = f"less {_word(by[place])} ({had:.4g} instead of {has:.4g} GB/s)"
    return f"{won}; {rival} has as much, but {less}"


def _explain_lone_winner(grant: Grant, winner: str) -> str:
    candidates = f"{grant.placement.candidates:,} candidates"
    if grant.problem.too_many:
        return f"{winner} is what no exchange of two GPUs improves: {candidates} are too many"
    if grant.problem.nvlink or grant.problem.least_gb_per_s:
        return f"of {candidates} {winner} alone has what the job needs, or sets just like it"
    return f"all {candidates} are alike, and {winner} has the lowest indices"


def _word(name: str) -> str:
    return name.replace("_", " ")


# ---------------------------------------------------------------------- what would work instead


def find_alternatives(request: Request, state: State, most: int) -> list[Alternative]:
    """Return requests like this one that would be granted now.

    Each wish or constraint is dropped alone; then fewer GPUs are asked for, `most` at first.
    """
    found = []
    for instead, lesser in _relaxed_requests(request):
        decision = decide(lesser, state)
        if isinstance(decision, Grant):
            found.append(_alternative_of(instead, decision))
    asked = request.least_gpus or request.gpus
    asked = asked or len(admitted_gpus(request, state.topology, state.within))
    # A single GPU has no links, so it would only seem to meet wishes about them.
    links_matter = request.nvlink or request.least_gb_per_s
    fewer = range(min(asked - 1, most), 1 if links_matter else 0, -1)
    for count in fewer[:_FEWER] if not request.pattern.ranks else ():
        decision = decide(replace(request, gpus=count, least_gpus=None), state)
        if isinstance(decision, Grant):
            return [*found, _alternative_of(f"ask for {gpus_text(count)}", decision)]
    return found


def _alternative_of(instead: str, grant: Grant) -> Alternative:
    return Alternative(instead, grant.placement.gpus, grant.placement.scores.effective_bandwidth)


def _relaxed_requests(request: Request) -> Iterator[tuple[str, Request]]:
    """Yield the request without each of the things that narrow it, and what was dropped."""
    if request.nvlink:
        yield "drop --nvlink", replace(request, nvlink=False)
    if request.least_gb_per_s:
        yield "drop -o min_bandwidth", replace(request, least_gb_per_s=0.0)
    if request.one_numa_node:
        yield "drop -o numa=strict", replace(request, one_numa_node=False)
    if POLICIES[request.policy].waits_for_utility and request.least_utility:
        yield (
            "drop -o min_utility",
            replace(request, least_utility=0.0),
        )
    for constraint in request.constraints:
        others = tuple(other for other in request.constraints if other is not constraint)
        yield f"drop {constraint.text}", replace(request, constraints=others)
