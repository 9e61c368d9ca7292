"""Why this decision: who was left out, what set the winner apart, and what would work instead."""
# pure: decides on plain values

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from gpulaunch.decide.decide import (
    Decision,
    Grant,
    Situation,
    admitted_gpus,
    assess_share_groups,
    decide,
    leased_uuids,
    used_outside,
)
from gpulaunch.decide.needs import kept_apart, to_avoid
from gpulaunch.decide.placement.fabric import UNIT
from gpulaunch.decide.placement.place import Candidate, ranking
from gpulaunch.decide.placement.policies import POLICIES
from gpulaunch.decide.request import Request, UtilityTerms, Wishes
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.gpu_names import gpus_named, gpus_text
from gpulaunch.records import Record, replace

if TYPE_CHECKING:  # what few launches need, the others do not load
    from gpulaunch.decide.share_options import ShareOption

_FEWER = 16  # so many smaller counts are tried


class Excluded(Record):
    """A GPU that was not to be chosen.

    Attributes:
        gpu: which.
        why: such as "leased by alice: train (c3d9528f5152)" or "--exclude 3".
    """

    gpu: Gpu
    why: str


class Alternative(Record):
    """A request that would be granted now.

    Attributes:
        instead: what to change, such as "drop --min-bandwidth".
        gpus: what it would get, by index in rank order.
        effective_bandwidth: of those, GB/s; None if there is none.
    """

    instead: str
    gpus: tuple[int, ...]
    effective_bandwidth: float | None


class Explanation(Record):
    """What there is to say about a decision.

    Attributes:
        excluded: GPUs that could not be chosen, each with its reason.
        candidates: the best ones side by side, the winner first; empty unless granted.
        reason: what made the winner win, or why there is none.
        alternatives: the nearest things that would work; empty if granted.
        if_idle: what the idle machine would give, if that is faster than what is granted.
        sharing: what becomes of each share group if the job comes to it, and what its GPUs are
            called; last of GPUs that it opens. Empty if it does not share.
    """

    excluded: list[Excluded]
    candidates: list[Candidate]
    reason: str
    alternatives: list[Alternative]
    if_idle: Alternative | None = None
    sharing: "Sequence[tuple[ShareOption, str]]" = ()


def explain(
    request: Request,
    situation: Situation,
    decision: Decision,
    limit: int,
    user_name: Callable[[int], str],
) -> Explanation:
    """Explain a decision that was made in this situation.

    Args:
        request: what was asked.
        situation: what it met.
        decision: the answer.
        limit: how many candidates to list.
        user_name: login name of a user id.
    """
    left_out = excluded(request, situation, user_name)
    shared = _shared(request, situation, decision) if request.sharing else []
    if not isinstance(decision, Grant):
        most = len(situation.topology.gpus) - len(left_out)
        return Explanation(
            left_out, [], decision.reason, alternatives(request, situation, most), sharing=shared
        )
    if decision.share_option and decision.share_option.residents:
        left_out = [one for one in left_out if one.gpu.uuid not in decision.share_option.group]
    ranked = list(islice(ranking(decision.problem, request.policy), max(limit, 2)))
    reason = _reason(request, decision, ranked)
    if decision.problem.scorer.mapper.gave_up:
        reason += "; there were too many mappings to try them all"
    return Explanation(
        left_out, ranked[:limit], reason, [], _if_idle(request, situation, decision), shared
    )


def _shared(
    request: Request, situation: Situation, decision: Decision
) -> "list[tuple[ShareOption, str]]":
    """The share groups that there are, and last what is opened."""
    found = assess_share_groups(request, situation)
    opens = decision.share_option if isinstance(decision, Grant) else None
    if opens and not opens.residents:
        gpus = [gpu for gpu in situation.topology.gpus if gpu.uuid in opens.group]
        found.append((opens, gpus_named(gpus)))
    return found


def _if_idle(request: Request, situation: Situation, grant: Grant) -> Alternative | None:
    """What a job that cares for links would get for waiting until nobody else is there."""
    found = grant.placement.scores.effective_bandwidth
    if found is None or not grant.problem.sensitive:
        return None
    idle = decide(request, Situation(situation.topology, within=situation.within))
    best = idle.placement.scores.effective_bandwidth if isinstance(idle, Grant) else None
    if not isinstance(idle, Grant) or best is None or best <= found:
        return None
    return _alternative(f"--min-bandwidth {best:.4g} --wait", idle)


def excluded(
    request: Request, situation: Situation, user_name: Callable[[int], str]
) -> list[Excluded]:
    """Every GPU of the machine that this request cannot get now, with the first reason that there is."""
    topology, within = situation.topology, situation.within
    leased = leased_uuids(topology, situation.leases, within)
    holder = {uuid: lease for lease in situation.leases for uuid in lease.uuids}
    used = used_outside(situation, leased)
    apart = kept_apart(request, topology, situation.neighbours)
    admitted = {gpu.uuid for gpu in admitted_gpus(request, topology, within)}

    def why(gpu: Gpu) -> str:
        if within and gpu.uuid not in within.uuids:
            return f"not of lease {within.id}"
        for constraint in request.constraints:
            if gpu.uuid not in constraint.uuids:
                return constraint.text
        if gpu.uuid not in admitted:
            return "a MIG instance, and whole GPUs would do"
        if gpu.uuid in leased:
            lease = holder.get(gpu.uuid) or (holder.get(gpu.mig.card_uuid) if gpu.mig else None)
            return f"leased by {_whose(lease, user_name)}" if lease else "leased"
        if gpu.uuid in used:
            return f"in use outside gpulaunch: {used[gpu.uuid]}"
        return (
            f"beside {', '.join(_whose(lease, user_name) for lease in avoided)}"
            if gpu.uuid in apart
            else ""
        )

    avoided = to_avoid(request, situation.neighbours)
    return [Excluded(gpu, reason) for gpu in topology.gpus if (reason := why(gpu))]


def _whose(lease: Lease, user_name: Callable[[int], str]) -> str:
    job = lease.name or lease.profile
    return (
        f"{user_name(lease.user_id)}: {job} ({lease.id})"
        if job
        else f"{user_name(lease.user_id)} ({lease.id})"
    )


# ---------------------------------------------------------------------- what made the winner win


def _reason(request: Request, grant: Grant, ranked: list[Candidate]) -> str:
    winner = grant.problem.format_set(ranked[0].gpus)
    if grant.share_option and grant.share_option.residents:
        return f"{winner} is {grant.reason}"
    if grant.placement.candidates == 1:
        group = " in one NUMA node" if request.wishes.one_numa_node else " in one machine"
        return (
            f"{winner} is the only set of free GPUs that "
            f"fits{group if grant.problem.needs.within else ''}"
        )
    if grant.placement.chosen_by_policy:
        utility = grant.placement.utility
        useful = "" if utility is None else f", of utility {utility:.2f} to the job"
        return (
            f"{winner} is what policy {request.policy.replace('_', '-')} makes{useful}; it "
            "compares no candidates"
        )
    if not grant.placement.by:
        return f"{winner} has the lowest indices, which is all that this policy looks at"
    return (
        _without_rival(grant, winner)
        if len(ranked) == 1
        else _against(grant, winner, ranked[0], ranked[1])
    )


def _against(grant: Grant, winner: str, first: Candidate, second: Candidate) -> str:
    """The first score in which the winner beats the runner-up."""
    problem, by = grant.problem, grant.placement.by
    tied: list[str] = []
    figures = [problem.scores_by(problem.mask(candidate.gpus), by) for candidate in (first, second)]
    for name, mine, other in zip(by, *figures, strict=True):
        after = f", after a tie in {', '.join(tied)}" if tied else ""
        if mine > other and name == "fragmentation":
            return (
                f"{winner} leaves less of its sockets free{after}: {-mine / UNIT:.3g} against "
                f"{-other / UNIT:.3g}"
            )
        if mine > other:
            return (
                f"{winner} has the most {_word(name)}: {mine / UNIT:.4g} GB/s against "
                f"{other / UNIT:.4g}{after}"
            )
        tied.append(_word(name))
    return (
        f"{winner} ties with {problem.format_set(second.gpus)} in {', '.join(tied)}, and has lower "
        "indices"
    )


def _without_rival(grant: Grant, winner: str) -> str:
    if grant.problem.too_many:
        return (
            f"{winner} is what no exchange of two GPUs improves: {grant.placement.candidates} "
            "candidates are too many"
        )
    if grant.problem.musts or grant.problem.needs.at_most:
        return (
            f"of {grant.placement.candidates} candidates {winner} alone has what the job needs, or "
            "sets just like it"
        )
    return (
        f"all {grant.placement.candidates} candidates are alike, and {winner} has the lowest "
        "indices"
    )


def _word(name: str) -> str:
    return name.replace("_", " ")


# ---------------------------------------------------------------------- what would work instead


def alternatives(request: Request, situation: Situation, most: int) -> list[Alternative]:
    """Each wish or constraint whose absence alone would do, then fewer GPUs; each is a request that is granted now.

    Args:
        request: what was not granted.
        situation: what it met.
        most: so many GPUs could be chosen, each for itself.
    """
    found = []
    for instead, lesser in _lesser(request):
        decision = decide(lesser, situation)
        if isinstance(decision, Grant):
            found.append(_alternative(instead, decision))
    asked = request.gpus or len(admitted_gpus(request, situation.topology, situation.within))
    links_matter = (
        request.wishes.nvlink or request.wishes.least_gb_per_s
    )  # of a single GPU they do not
    fewer = range(min(asked - 1, most), 1 if links_matter else 0, -1)
    for count in fewer[:_FEWER] if not request.pattern.ranks else ():
        decision = decide(replace(request, gpus=count), situation)
        if isinstance(decision, Grant):
            return [*found, _alternative(f"ask for {gpus_text(count)}", decision)]
    return found


def _alternative(instead: str, grant: Grant) -> Alternative:
    return Alternative(instead, grant.placement.gpus, grant.placement.scores.effective_bandwidth)


def _lesser(request: Request) -> Iterator[tuple[str, Request]]:
    """The request without one of the things that narrow it, for each of them."""
    wishes = request.wishes
    nothing = Wishes()
    for field, option in _OPTIONS.items():
        if getattr(wishes, field) != getattr(nothing, field):
            without = replace(wishes, **{field: getattr(nothing, field)})
            yield f"drop {option}", replace(request, wishes=without)
    if POLICIES[request.policy].waits_for_utility and request.utility.least:
        yield (
            "drop --min-utility",
            replace(request, utility=replace(request.utility, least=UtilityTerms().least)),
        )
    for constraint in request.constraints:
        others = tuple(other for other in request.constraints if other is not constraint)
        yield f"drop {constraint.text}", replace(request, constraints=others)


_OPTIONS = {
    "required": "--require",
    "nvlink": "--nvlink",
    "least_gb_per_s": "--min-bandwidth",
    "one_numa_node": "--numa strict",
    "single_node": "--single-node",
    "one_per_node": "--one-per-node",
    "apart_from": "--apart-from",
    "host_gb_per_s": "--host-bandwidth",
}
