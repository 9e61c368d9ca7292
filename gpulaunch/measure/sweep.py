"""The throughput of a job over the share of a GPU's SMs that it has under MPS.

Source: cd-search-ics18 Figure 7, mps-sharing-2024 Figure 1.
"""

from collections.abc import Callable, Sequence

from gpulaunch.errors import FailedError
from gpulaunch.launch.launch import Launch
from gpulaunch.machine.catalog import load_gpu_models
from gpulaunch.machine.gpu_model import find_gpu_model
from gpulaunch.machine.gpu_names import gpus_named
from gpulaunch.measure.measured_launch import SOURCE, MeasuredJob, Outcome, Sections, launch, timed
from gpulaunch.measure.measured_runs import rounded
from gpulaunch.measure.measuring_place import check_sharable, find_site, names
from gpulaunch.measure.recording import SHARED
from gpulaunch.profiles.demand import CurvePoint
from gpulaunch.sharing.curve import fewest_sms, percentage_for, saturates
from gpulaunch.sharing.intensity import SMS_IF_UNKNOWN


def measure_sweep(
    job: MeasuredJob,
    one: Launch,
    shares: Sequence[int],
    warn: Callable[[str], None],
    tell: Callable[[str], None],
) -> Outcome:
    """Run a job alone on its GPU with each of the given shares of its SMs.

    Args:
        job: the job to measure.
        one: its launch, read.
        shares: percentages of the SMs, 1-100, ascending.
        warn: called with each warning.
        tell: called with each line of progress.

    Raises:
        FailedError: the GPU cannot be shared, so that nothing bounds the SMs.
        WouldWaitError: the GPUs that it needs are busy.
        UsageError: the launch can never be granted.
    """
    site = find_site(one, warn)
    check_sharable(one, site.gpus, "--sweep")
    memory = min(gpu.memory_bytes for gpu in site.gpus)
    alone = (
        "--memory",  # all of it, so that no other job comes beside it
        str(memory),
        "--only",
        names(site.gpus),
    )
    points: list[CurvePoint] = []
    for share in shares:
        tell(f"{share} % of the SMs of {gpus_named(site.gpus)}")
        done = launch(job, (*alone, f"--share={share}%"))
        if not done.went_well:
            break
        if done.run and SHARED not in done.run.problems:
            raise FailedError(
                f"--sweep: {gpus_named(site.gpus)} not shared, so nothing bounds the SMs"
            )
        points.append(CurvePoint(float(share), rounded(1 / timed(done))))
    if len(points) < 2:
        return Outcome({}, done.over.status)
    sections = _curve_sections(points, site.gpus[0].model, job)
    if len(points) < len(shares):
        sections["sm_curve"]["incomplete"] = True
    return Outcome(sections, done.over.status, (_curve_text(points, job),))


def _unit(job: MeasuredJob) -> str:
    return "iterations/s" if job.part else "runs/s"


def _curve_sections(points: Sequence[CurvePoint], model: str, job: MeasuredJob) -> Sections:
    known = find_gpu_model(load_gpu_models(), model)
    sm_count = known.sm_count if known else SMS_IF_UNKNOWN
    source = f"{SOURCE} --sweep, alone under MPS"
    sections: Sections = {
        "sm_curve": {
            "sm_percentage": [point.sm_percentage for point in points],
            "throughput": [point.throughput for point in points],
            "unit": _unit(job),
            "knee_percentage": percentage_for(fewest_sms(points, sm_count), sm_count),
            "measured_on": model,
            "source": source,
        }
    }
    memory = saturates(points)
    if memory is not None:
        sections["classification"] = {
            "intensity": "memory" if memory else "compute",
            "source": source,
        }
    return sections


def _curve_text(points: Sequence[CurvePoint], job: MeasuredJob) -> str:
    curve = ", ".join(f"{point.sm_percentage:g} %: {point.throughput:.4g}" for point in points)
    memory = saturates(points)
    verdict = "" if memory is None else f"; {'memory' if memory else 'compute'}-intensive"
    return f"{_unit(job)} by share of the SMs: {curve}{verdict}"
