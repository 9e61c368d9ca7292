"""Plain runs of a job, which measure its use of the GPUs and the traffic between them."""

from collections.abc import Callable

from gpulaunch.measure.measured_launch import SOURCE, MeasuredJob, Outcome, repeated
from gpulaunch.measure.measured_pattern import communication_of
from gpulaunch.measure.measured_runs import resources_of


def measure_use(job: MeasuredJob, count: int, tell: Callable[[str], None]) -> Outcome:
    """Run the job `count` times and return its resources and communication.

    A run that fails is the last one; what was measured until then is returned, marked incomplete.

    Args:
        job: the job to measure.
        count: number of runs, at least 1.
        tell: called with each line of progress.
    """
    done = repeated(job, count, tell)
    status = done[-1].over.status
    runs = [one.run for one in done if one.run]
    if not runs:
        return Outcome({}, status)
    good = [one.run for one in done if one.run and one.went_well]
    sections = resources_of(good or runs, SOURCE)
    if len(good) < len(runs):
        sections["resources"]["incomplete"] = True
    found = communication_of((good or runs)[-1], SOURCE)
    if found.section:
        sections["communication"] = found.section
    lines = list(found.lines)
    if job.part is not None and not any(one.over.marks for one in done):
        lines.insert(0, "--iterations-from: nothing that the job printed fits, so all of it ran")
    return Outcome(sections, status, tuple(lines))
