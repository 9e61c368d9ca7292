"""The sensitivity of a job to link bandwidth: runs on the best and on the worst GPUs.

Source: mapa-sc21 2.3 and Figure 6.
"""

from collections.abc import Callable, Sequence
from statistics import median

from gpulaunch.decide.placement.policies import DEFAULT_POLICY
from gpulaunch.errors import UsageError
from gpulaunch.launch.launch import Launch
from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.measure.foreground import progress_of
from gpulaunch.measure.measured_launch import (
    SOURCE,
    Launched,
    MeasuredJob,
    Outcome,
    repeated,
    timed,
)
from gpulaunch.measure.measured_runs import rounded
from gpulaunch.measure.measuring_place import extremes, find_site, names
from gpulaunch.records import replace
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.decide.placement.place import Candidate

SENSITIVE_PERCENTAGE = 3.0
"""Least slowdown on the worst GPUs of a job that counts as sensitive. mapa-sc21 4 calls Jacobi,
whose gain is less, insensitive.
"""

NEAR = 0.9
"""Largest ratio of the worst to the best effective bandwidth at which it is worth measuring. Our
choice.
"""


def measure_sensitivity(
    job: MeasuredJob,
    one: Launch,
    count: int,
    warn: Callable[[str], None],
    tell: Callable[[str], None],
) -> Outcome:
    """Run a job on the best and on the worst of the free GPUs, and compare the median times.

    Args:
        job: the job to measure.
        one: its launch, read.
        count: number of runs on each placement, in turn.
        warn: called with each warning.
        tell: called with each line of progress.

    Raises:
        UsageError: the job has one GPU, or all placements are alike.
        WouldWaitError: the GPUs that it needs are busy.
    """
    sure = replace(
        one, request=replace(one.request, bandwidth_sensitive=True, policy=DEFAULT_POLICY)
    )
    site = find_site(sure, warn)
    if len(site.gpus) == 1:
        raise UsageError("--sensitivity: a job of 1 GPU has no links to compare", "-n 2 or more")
    best, worst = extremes(site)
    fast, slow = best.scores.effective_bandwidth or 0.0, worst.scores.effective_bandwidth or 0.0
    if slow > NEAR * fast:
        found = (
            f"{gpus_text(len(site.gpus))} have {fast:.4g} GB/s at best and {slow:.4g} GB/s at worst"
        )
        raise UsageError(f"--sensitivity: {found} here: there is nothing to compare")
    done: dict[Candidate, list[Launched]] = {best: [], worst: []}
    for number in range(1, count + 1):
        for what, candidate in (("best", best), ("worst", worst)):
            of = f"run {number} of {count}: " if count > 1 else ""
            where = f"GPUs {names(candidate)}, {candidate.scores.effective_bandwidth:.4g} GB/s"
            ran = repeated(
                job, 1, tell, f"{of}the {what} placement: {where}", ("--only", names(candidate))
            )
            done[candidate] += ran
            if not ran[-1].went_well:
                return Outcome({}, ran[-1].over.status)
    best_s, worst_s = (median(map(timed, runs)) for runs in done.values())
    slowdown = 100 * (worst_s / best_s - 1)
    where = f"{site.situation.topology.name}, GPUs {names(best)} and {names(worst)}"
    source = f"{SOURCE} --sensitivity on {where}"
    sections = {
        "sensitivity": {
            "best_gb_per_s": rounded(fast),
            "worst_gb_per_s": rounded(slow),
            "best_s": rounded(best_s),
            "worst_s": rounded(worst_s),
            **_fewest_iterations(done[best] + done[worst]),
            "slowdown_percentage": rounded(slowdown),
            "measured_on": site.gpus[0].model,
            "source": source,
        },
        "communication": {
            "bandwidth_sensitive": slowdown >= SENSITIVE_PERCENTAGE,
            "source": source,
        },
    }
    unit = "an iteration" if job.part else "a run"
    verdict = (
        "bandwidth-sensitive" if slowdown >= SENSITIVE_PERCENTAGE else "not bandwidth-sensitive"
    )
    times = f"{best_s:.4g} s for {unit} at {fast:.4g} GB/s, {worst_s:.4g} s at {slow:.4g} GB/s"
    return Outcome(
        sections,
        done[worst][-1].over.status,
        (f"{times}: {slowdown:+.3g} %, {verdict}", *_doubt_single_runs(count)),
    )


def _fewest_iterations(done: Sequence[Launched]) -> dict[str, int]:
    """Return {"iterations": N}, the fewest timed in a launch; {} without progress."""
    counts = [progress_of(one.over.marks) for one in done if one.over.marks]
    return {"iterations": max(1, int(min(counts)))} if counts else {}


def _doubt_single_runs(count: int) -> tuple[str, ...]:
    if count > 1:
        return ()
    return ("one run on each: the first may be slower than later ones, and --runs 3 tells more",)
