"""Slowdowns of a job beside another one (topo-aware-sc17 4.2 and 5.1; mps-sharing-2024)."""

import os
import sys
from collections.abc import Callable, Sequence

from gpulaunch.errors import UsageError, WouldWaitError, quoted
from gpulaunch.launch.launch import Launch
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.gpu_names import gpus_named, gpus_text
from gpulaunch.measure import synthetic_load
from gpulaunch.measure.background import Background
from gpulaunch.measure.measured_launch import SOURCE, MeasuredJob, Outcome, repeated, timed
from gpulaunch.measure.measured_runs import percentile_95, rounded
from gpulaunch.measure.measuring_place import Site, check_sharable, find_site, names
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.records import Record
from gpulaunch.typing import Any

RUNS = 5
"""Number of runs alone and beside each other job, as in topo-aware-sc17 5.1."""

PATIENCE_S = 120.0
SYNTHETIC = "synthetic"
_LOADS = ("memory", "link", "compute")

_NAMES = {False: "collocation", True: "shared_gpu"}
_MEET = {"GPULAUNCH_SLOWDOWN_BOUND_PERCENTAGE": "10000"}
"""Variables that let two jobs meet whatever slowdown is known: it is what is to be measured."""


class Other(Record):
    """A program that runs beside the job.

    Attributes:
        name: key of its slowdown in the profile.
        command: argv.
        gpus: number of GPUs that it needs.
        says: text that its output contains once it is at work; None if it prints no such text.
    """

    name: str
    command: tuple[str, ...]
    gpus: int
    says: bytes | None = None


def find_others(name: str) -> list[Other]:
    """Return the programs to run beside the job.

    Args:
        name: a profile that has a command, or "synthetic" for our three loads.

    Raises:
        UsageError: there is no such profile, or it has no command.
    """
    if name == SYNTHETIC:
        program = os.path.abspath(synthetic_load.__file__)
        return [
            Other(f"{SYNTHETIC}-{load}", (sys.executable, program, load), 1, b"ready")
            for load in _LOADS
        ]
    profile = load_profile(name)
    if not profile.command:
        hint = (
            "'gpulaunch profile -o FILE -- COMMAND' writes one that does, or write command = "
            f"[...] into {name}"
        )
        raise UsageError(f"--pair: profile {quoted(name)} does not say what to run", hint)
    return [Other(profile.name, tuple(profile.command), profile.gpus or profile.runs.gpus or 1)]


def measure_pair(
    job: MeasuredJob,
    one: Launch,
    others: Sequence[Other],
    count: int,
    warn: Callable[[str], None],
    tell: Callable[[str], None],
    *,
    shares: bool,
) -> Outcome:
    """Run a job alone and beside each of the others, and compare the 95th percentiles of the times.

    Either the others share its GPUs through MPS, half each, or they run on other GPUs of the same
    socket.

    Args:
        job: the job to measure.
        one: its launch, read.
        others: the programs to run beside it.
        count: number of runs alone, and beside each program.
        warn: called with each warning.
        tell: called with each line of progress.
        shares: whether the others share the job's GPUs.

    Raises:
        WouldWaitError: too few GPUs are free.
        UsageError: the launch can never be granted, or the job printed too little progress.
        FailedError: another program ended too early.
    """
    site = find_site(one, warn)
    if shares:
        check_sharable(one, site.gpus, "--pair --share")
    _try_loads(job, site, others)
    alone = repeated(job, count, tell, "alone", ("--exclusive", "--only", names(site.gpus)), _MEET)
    if not alone[-1].went_well:
        return Outcome({}, alone[-1].over.status)
    solo_s = percentile_95([timed(each) for each in alone])
    slowdowns: dict[str, float] = {}
    lines = []
    status, complete = alone[-1].over.status, True
    for other in others:
        gpus = site.gpus if shares else _gpus_beside(site, other)
        half = _half_options(site.gpus) if shares else ("--exclusive",)
        options = (*half, "--only", names(gpus), "-n", str(len(gpus)), "--name", other.name)
        with Background(
            other.name, options, other.command, _MEET, other.says, PATIENCE_S, 2 * job.grace_s
        ) as beside:
            tell(f"{other.name} runs on {gpus_named(gpus)}")
            met = repeated(
                job, count, tell, f"beside {other.name}", (*half, "--only", names(site.gpus)), _MEET
            )
            beside.check()
        status = met[-1].over.status
        if not met[-1].went_well:
            complete = False
            break
        met_s = percentile_95([timed(each) for each in met])
        slowdowns[other.name] = rounded(max(0.0, 100 * (met_s / solo_s - 1)))
        lines.append(
            f"{met_s:.4g} s beside {other.name}, {solo_s:.4g} s alone: "
            f"{100 * (met_s / solo_s - 1):+.3g} %"
        )
    if not slowdowns:
        return Outcome({}, status)
    section = _slowdown_section(slowdowns, site.gpus[0].model, count, shares=shares)
    return Outcome(
        {_NAMES[shares]: section if complete else {**section, "incomplete": True}},
        status,
        tuple(lines),
    )


def _try_loads(job: MeasuredJob, site: Site, others: Sequence[Other]) -> None:
    """Check, before long work, that our synthetic loads run here; profiles' jobs are not tried."""
    for other in others:
        if other.says:
            options = ("--only", names(site.gpus[:1]))
            with Background(
                other.name, options, other.command, _MEET, other.says, PATIENCE_S, job.grace_s
            ):
                pass


def _half_options(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return the options that give a launch half of each GPU, whatever it needs."""
    memory = min(gpu.memory_bytes for gpu in gpus) // 2
    return ("--share", "-o", "utilization=50,50", "--memory", str(memory))


def _gpus_beside(site: Site, other: Other) -> tuple[Gpu, ...]:
    """Return free GPUs on the sockets of the job's GPUs.

    Raises:
        WouldWaitError: there are too few.
    """
    sockets = {gpu.numa_node for gpu in site.gpus}
    free = [gpu for gpu in site.free if gpu not in site.gpus and gpu.numa_node in sockets]
    if len(free) < other.gpus:
        verb = "is" if len(free) == 1 else "are"
        found = f"{gpus_text(len(free))} {verb} free on the socket of {gpus_named(site.gpus)}"
        raise WouldWaitError(
            f"--pair: {other.name} needs {gpus_text(other.gpus)}: {found}",
            "--share puts both on one GPU",
        )
    return tuple(free[: other.gpus])


def _slowdown_section(
    slowdowns: dict[str, float], model: str, count: int, *, shares: bool
) -> dict[str, Any]:
    runs = f"95th percentiles of {count} runs" if count > 1 else "1 run each"
    source = f"{SOURCE} --pair: {runs}, on {model}"
    return {
        "slowdown_percentage": slowdowns,
        **({"measured_on": model} if shares else {}),
        "source": source,
    }
