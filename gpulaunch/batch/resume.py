"""The remains of an earlier run of a batch: results, last words of launches, running jobs.

A batch may be killed while its launches live on. Each is marked by a variable in its environment,
and writes into the results how its job has ended if the batch cannot. So no job is run twice.
"""

from collections.abc import Callable, Iterable

from gpulaunch.batch.results_file import Result, ResultsFile
from gpulaunch.batch.tasks import Task
from gpulaunch.errors import WouldWaitError
from gpulaunch.leases.environment import BATCH_VARIABLE
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.table import Table
from gpulaunch.process.ending import end_all, marked_by
from gpulaunch.records import replace


def look_back(
    tasks: Iterable[Task], results: ResultsFile, table: Table, grace_s: float
) -> dict[int, Result]:
    """Return the results of ended jobs after an earlier run, by id, and tidy up.

    Last words become results, and a launch that waits for GPUs is ended.

    Args:
        tasks: tasks of the batch, from the present file of jobs.
        results: results of the batch.
        table: table with its leases.
        grace_s: seconds between TERM and KILL.

    Raises:
        WouldWaitError: a job still runs.
        FailedError: the results cannot be written.
    """
    by_id = {task.id: task for task in tasks}
    for number, (lease, digest, pids) in _find_living(results, table).items():
        if lease:
            raise WouldWaitError(
                f"job {number} of this batch still runs (pid {min(pids)})",
                f"wait for its end, or 'gpulaunch free {lease.id}' ends it",
            )
        mark = results.mark(number, digest)
        end_all(_processes_of(mark, results), grace_s)
        results.read()
        task = by_id.get(number)
        words = results.last_words_of(mark, task.name, task.arrival_s) if task else None
        if words:  # it got its GPUs at this very moment
            results.add(replace(words, interrupted=True))
    done = {}
    for task in by_id.values():
        words = results.last_words_of(results.mark(task.id, task.digest), task.name, task.arrival_s)
        if words:
            results.add(words)
        result = results.results.get(task.id)
        if result and result.digest == task.digest and result.is_final:
            done[task.id] = result
    return done


def _find_living(
    results: ResultsFile, table: Table
) -> dict[int, tuple[Lease | None, str, set[int]]]:
    """Return the jobs that have processes and no result, by id: lease, digest, pids."""
    begin = results.mark(0, "").partition(".")[0] + "."
    leases = table.own_leases()
    living: dict[int, tuple[Lease | None, str, set[int]]] = {}
    for mark, pids in marked_by(BATCH_VARIABLE).items():
        number, _, digest = mark.removeprefix(begin).partition(".")
        if not mark.startswith(begin) or not number.isdecimal() or mark in results.last_words:
            continue
        result = results.results.get(int(number))
        if result and result.digest == digest and result.is_final:
            continue  # it has ended, and left processes behind
        lease = next((one for one in leases if {one.launcher.pid, one.job.pid} & pids), None)
        living[int(number)] = lease, digest, pids
    return living


def _processes_of(mark: str, results: ResultsFile) -> Callable[[], set[int]]:
    """Return a function that finds the pids of a job's launch and all its descendants.

    It finds none once the launch has written its last words.

    Args:
        mark: mark of the job.
        results: results in which the last words are written.
    """

    def find() -> set[int]:
        results.read()
        return set() if mark in results.last_words else marked_by(BATCH_VARIABLE).get(mark, set())

    return find
