"""Measurements of a job: its use of the GPUs, and how runs of it differ by what they get.

Runs are compared on the best and on the worst GPUs, with several shares of a GPU's SMs, and beside
another job.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from gpulaunch.decide.decision import Grant, Unfit, Wait
from gpulaunch.errors import FailedError, GpulaunchError, UsageError, WouldWaitError, quoted
from gpulaunch.lab.measure import synthetic_load
from gpulaunch.lab.measure.launches import (
    Background,
    Launched,
    MeasuredJob,
    Other,
    launch,
    repeated,
)
from gpulaunch.lab.measure.recording import refuse_described
from gpulaunch.lab.measure.run import SHARED, communication_of, rounded
from gpulaunch.lab.measure.update_profile import Outcome, percentile_95, resources_of
from gpulaunch.launch.launch import Launch, preview
from gpulaunch.launch.read_sharing import what_can_be_shared
from gpulaunch.machine.gpu import Gpu, gpu_names, gpus_named, gpus_text
from gpulaunch.placement.policies import DEFAULT_POLICY, Placement, ranking
from gpulaunch.process.job import exit_status
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.profiles.demand import CurvePoint, saturates
from gpulaunch.records import replace

SOURCE = "gpulaunch profile measure"

SENSITIVE_PERCENTAGE = 3.0
"""Least slowdown on the worst GPUs of a job that counts as sensitive. mapa-sc21 4 calls Jacobi,
whose gain is less, insensitive.
"""

NEAR = 0.9
"""Largest ratio of the worst to the best effective bandwidth at which it is worth measuring. Our
choice.
"""

LOAD_S = 5.0
"""Seconds for which a synthetic load runs alone, to know how much it does then."""

CURVE_PERCENTAGES = (20, 50, 100)
"""Shares of the SMs that a job which can be cut is measured with, so that it may share."""

SYNTHETIC = "synthetic"


def _find_site(one: Launch, warn: Callable[[str], None]) -> tuple[Grant, tuple[Gpu, ...]]:
    """Decide about a launch without taking a lease; return the grant and its GPUs by rank."""
    refuse_described(one.machine)
    decision, _ = preview(one, warn)
    if isinstance(decision, Wait):
        raise WouldWaitError(decision.reason, "measure when they are free; see 'gpulaunch status'")
    if not isinstance(decision, Grant):
        raise UsageError(decision.reason)
    return decision, tuple(decision.gpus)


def _check_sharable(one: Launch, gpus: Iterable[Gpu]) -> None:
    offer = what_can_be_shared(one.machine)
    if isinstance(offer, Unfit):
        raise FailedError(f"no GPU can be shared: {offer.reason}")
    for gpu in gpus:
        if gpu.uuid in offer.unfit:
            raise FailedError(f"GPU {gpu.name} cannot be shared: {offer.unfit[gpu.uuid]}")


def measure_use(job: MeasuredJob, read_launch: Callable[[], Launch]) -> Outcome:
    """Run a job and return its resources, communication and curve over the SMs.

    A run that fails is the last one; what was measured until then is returned, marked incomplete.
    Only a job that can be cut has a curve: else it would run three times more.
    """
    done = repeated(job)
    status = done[-1].status
    runs = [one.run for one in done if one.run]
    if not runs:
        return Outcome({}, status)
    good = [one.run for one in done if one.run and one.went_well]
    sections = resources_of(good or runs, SOURCE)
    if len(good) < len(runs):
        sections["resources"]["incomplete"] = True
    communication, about = communication_of((good or runs)[-1], SOURCE)
    if communication:
        sections["communication"] = communication
    lines = list(about)
    why = "--iterations-from REGEX tells its progress, so that it can be cut"
    if job.progress is not None and not any(one.marks for one in done):
        lines.insert(0, "--iterations-from: nothing that the job printed fits, so all of it ran")
    elif job.progress is not None and not status:
        try:
            curve = _measure_curve(job, read_launch())
        except GpulaunchError as problem:
            why = problem.message
        else:
            why = f"it ended with status {exit_status(curve.status)}"
            sections |= curve.sections
            lines += curve.lines
            status = curve.status if os.WIFSIGNALED(curve.status) else status
    if not status and "sm_curve" not in sections:
        lines.append(f"no curve over its share of the SMs: {why}")
    return Outcome(sections, status, tuple(lines))


def measure_sensitivity(job: MeasuredJob, one: Launch) -> Outcome:
    """Run a job on the best and on the worst of the free GPUs, and compare the median times.

    Raises:
        UsageError: the job has one GPU, or all placements are alike.
        WouldWaitError: the GPUs that it needs are busy.

    Source: mapa-sc21 2.3 and Figure 6.
    """
    sure = replace(
        one, request=replace(one.request, bandwidth_sensitive=True, policy=DEFAULT_POLICY)
    )
    grant, gpus = _find_site(sure, job.warn)
    if len(gpus) == 1:
        raise UsageError("--sensitivity: a job of 1 GPU has no links to compare", "-n 2 or more")
    candidates = ranking(grant.problem, DEFAULT_POLICY)
    best = worst = next(candidates)
    for candidate in candidates:
        worst = candidate
    fast, slow = best.scores.effective_bandwidth or 0.0, worst.scores.effective_bandwidth or 0.0
    if slow > NEAR * fast:
        found = f"{gpus_text(len(gpus))} have {fast:.4g} GB/s at best and {slow:.4g} GB/s at worst"
        raise UsageError(f"--sensitivity: {found} here: there is nothing to compare")
    done: dict[Placement, list[Launched]] = {best: [], worst: []}
    for number in range(1, job.runs + 1):
        for what, candidate in (("best", best), ("worst", worst)):
            of = f"run {number} of {job.runs}: " if job.runs > 1 else ""
            only = ",".join(map(str, candidate.gpus))
            where = f"GPUs {only}, {candidate.scores.effective_bandwidth:.4g} GB/s"
            ran = repeated(job, f"{of}the {what} placement: {where}", ("--only", only), 1)
            done[candidate] += ran
            if not ran[-1].went_well:
                return Outcome({}, ran[-1].status)
    best_s, worst_s = (median(each.timed() for each in runs) for runs in done.values())
    slowdown = 100 * (worst_s / best_s - 1)
    compared = " and ".join(",".join(map(str, candidate.gpus)) for candidate in done)
    source = f"{SOURCE} --sensitivity on {one.machine.topology.name}, GPUs {compared}"
    is_sensitive = slowdown >= SENSITIVE_PERCENTAGE
    sections = {
        "sensitivity": {
            "slowdown_percentage": rounded(slowdown),
            "measured_on": gpus[0].model,
            "source": source,
        },
        "communication": {"bandwidth_sensitive": is_sensitive, "source": source},
    }
    unit = "an iteration" if job.progress else "a run"
    verdict = "bandwidth-sensitive" if is_sensitive else "not bandwidth-sensitive"
    times = f"{best_s:.4g} s for {unit} at {fast:.4g} GB/s, {worst_s:.4g} s at {slow:.4g} GB/s"
    lines = [f"{times}: {slowdown:+.3g} %, {verdict}"]
    if job.runs == 1:
        lines.append(
            "one run on each: the first may be slower than later ones, and --runs 3 tells more"
        )
    return Outcome(sections, done[worst][-1].status, tuple(lines))


def _measure_curve(job: MeasuredJob, one: Launch) -> Outcome:
    """Run a job alone on its GPU with each of CURVE_PERCENTAGES of its SMs.

    Source: cd-search-ics18 Figure 7, mps-sharing-2024 Figure 1.
    """
    _, gpus = _find_site(one, job.warn)
    _check_sharable(one, gpus)
    # All memory, so that no other job comes beside it.
    alone = ("--memory", str(_least_memory(gpus)), "--only", gpu_names(gpus))
    points: list[CurvePoint] = []
    for share in CURVE_PERCENTAGES:
        job.tell(f"{share} % of the SMs of {gpus_named(gpus)}")
        done = launch(job, (*alone, f"--share={share}%"))
        if not done.went_well:
            break
        if done.run and SHARED not in done.run.problems:
            raise FailedError(f"{gpus_named(gpus)} not shared, so nothing bounds the SMs")
        points.append(CurvePoint(float(share), rounded(1 / done.timed())))
    if len(points) < len(CURVE_PERCENTAGES):
        return Outcome({}, done.status)
    curve = {
        "sm_percentage": [point.sm_percentage for point in points],
        "throughput": [point.throughput for point in points],
        "unit": "iterations/s",
        "measured_on": gpus[0].model,
        "source": f"{SOURCE}, alone under MPS",
    }
    shown = ", ".join(f"{point.sm_percentage:g} %: {point.throughput:.4g}" for point in points)
    bound = "memory" if saturates(points) else "compute"
    line = f"iterations/s by share of the SMs: {shown}; {bound}-intensive"
    return Outcome({"sm_curve": curve}, done.status, (line,))


def _least_memory(gpus: Sequence[Gpu]) -> int:
    return min(gpu.memory_bytes for gpu in gpus)


def find_others(name: str) -> list[Other]:
    """Return the programs to run beside the job.

    Raises:
        UsageError: there is no such profile, or it has no command.
    """
    if name == SYNTHETIC:
        program = os.path.abspath(synthetic_load.__file__)
        return [
            Other(f"{SYNTHETIC}-{load}", (sys.executable, program, load), 1, b"ready")
            for load in synthetic_load.LOADS
        ]
    profile = load_profile(name)
    if not profile.command:
        hint = (
            "'gpulaunch profile measure -o FILE -- COMMAND' writes one that does, or write "
            f"command = [...] into {name}"
        )
        raise UsageError(f"--pair: profile {quoted(name)} does not say what to run", hint)
    return [Other(profile.name, tuple(profile.command), profile.gpus or profile.runs.gpus or 1)]


def measure_pair(
    job: MeasuredJob, one: Launch, others: Sequence[Other], *, shares: bool
) -> Outcome:
    """Run a job alone and beside each of the others, and compare the 95th percentiles of the times.

    Either the others share its GPUs through MPS, half each, or they run on other GPUs of the same
    socket.

    Raises:
        WouldWaitError: the GPUs that the job needs are busy.
        UsageError: the launch can never be granted, the socket has too few GPUs, or the job printed
            too little progress.
        FailedError: another program got no GPUs, or ended too early.

    Source: topo-aware-sc17 4.2 and 5.1; mps-sharing-2024.
    """
    _, gpus = _find_site(one, job.warn)
    sockets = {gpu.numa_node for gpu in gpus}
    near = [gpu for gpu in one.machine.topology.gpus if gpu.numa_node in sockets]
    theirs = list(gpus) if shares else [gpu for gpu in near if gpu not in gpus]
    part: tuple[str, ...] = ("--exclusive",)
    if shares:
        _check_sharable(one, gpus)
        # half of each GPU, whatever the job needs
        memory = _least_memory(gpus) // 2
        part = ("--share=50%", "-o", "utilization=50,50", "--memory", str(memory))
    elif len(theirs) < max(other.gpus for other in others):
        raise UsageError(
            f"--pair: the socket of {gpus_named(gpus)} has {gpus_text(len(theirs))} beside them",
            "--share puts both on one GPU",
        )
    own = gpu_names(gpus)
    rates = _try_loads(others, gpus, part if shares else (), job.grace_s)
    solo_s, last = _timed(job, "alone", ("--exclusive", "--only", own))
    slowdowns: dict[str, float] = {}
    forces: dict[str, float] = {}
    lines = []
    if solo_s is None:
        return Outcome({}, last.status)
    for other in others:
        theirs_count = str(len(gpus) if shares else other.gpus)
        which = ("--only", gpu_names(theirs), "-n", theirs_count, "--no-wait")
        options = (*part, *which, "--name", other.name)
        with Background(other, options, job.grace_s) as company:
            met_s, last = _timed(job, f"beside {other.name}", (*part, "--only", own))
            beside = company.rate(*last.at_work())
            company.check()
        if met_s is None:
            break
        slowdown = 100 * (met_s / solo_s - 1)
        slowdowns[other.name] = rounded(max(0.0, slowdown))
        if shares and other.name == f"{SYNTHETIC}-memory":
            # All memory, so that no other job comes beside it.
            lone = (*part, "--memory", str(_least_memory(gpus)), "--only", own)
            half_s, last = _timed(job, "alone on half of it", lone)
            if half_s is None:
                break
            forces = _forces(met_s / half_s - 1, rates[other.name], beside)
        lines.append(f"{met_s:.4g} s beside {other.name}, {solo_s:.4g} s alone: {slowdown:+.3g} %")
    if not slowdowns:
        return Outcome({}, last.status)
    model = gpus[0].model
    runs = f"95th percentiles of {job.runs} runs" if job.runs > 1 else "1 run each"
    section: dict[str, Any] = {"slowdown_percentage": slowdowns, **forces}
    if shares:
        section["measured_on"] = model
    section["source"] = f"{SOURCE} --pair: {runs}, on {model}"
    return Outcome({"shared_gpu" if shares else "collocation": section}, last.status, tuple(lines))


def _timed(job: MeasuredJob, what: str, options: Sequence[str]) -> tuple[float | None, Launched]:
    """Return the 95th percentile of the times of runs, None if one failed, and the last of them."""
    done = repeated(job, what, options)
    if not done[-1].went_well:
        return None, done[-1]
    return percentile_95([each.timed() for each in done]), done[-1]


def _forces(slowdown: float, alone: float | None, beside: float | None) -> dict[str, float]:
    """Return how much a job feels the memory load, and presses on it; nothing if it did not tell.

    The slowdown is against the job alone on as many SMs; the load told its rounds a second.
    """
    if not alone or not beside:
        return {}
    return {
        "feels": rounded(max(0.0, slowdown)),
        "presses": rounded(max(0.0, alone / beside - 1)),
    }


def _try_loads(
    others: Sequence[Other], gpus: Sequence[Gpu], part: Sequence[str], grace_s: float
) -> dict[str, float | None]:
    """Run our own loads alone, and return their rounds a second where they are to share.

    Before long work that tells whether they run here at all.
    """
    rates = {}
    for other in others:
        if other.says:
            only = ("--only", gpu_names(gpus[:1]), *part)
            with Background(other, only, grace_s) as load:
                began_s = time.monotonic()
                time.sleep(LOAD_S if part else 0)
                rates[other.name] = load.rate(began_s, time.monotonic())
    return rates
