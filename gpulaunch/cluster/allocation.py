"""The allocation that a cluster engine has made, and what its nodes have."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from gpulaunch.cluster.network import Switch
from gpulaunch.cluster.network_text import located
from gpulaunch.cluster.node_report import NodeReport, read_reports, report_document, report_of
from gpulaunch.cluster.open_mpi import Mpirun, hosts_of
from gpulaunch.cluster.slurm import Srun
from gpulaunch.cluster.slurm_topology import read_topology_conf
from gpulaunch.cluster.starter import Start, Starter
from gpulaunch.errors import FailedError, FieldError, UsageError, call_failed, printable, quoted
from gpulaunch.files import own_cache
from gpulaunch.files.document import read_text
from gpulaunch.files.write import write_text
from gpulaunch.records import Record

_SHOW_TOPOLOGY = ("scontrol", "show", "topology")
_OPEN_MPI = ("mpirun", "mpiexec", "orterun", "prterun")
_KEPT = "gpulaunch.nodes.json"
_TELLING = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_NODELIST",
    "SLURM_RESTART_COUNT",
    "SLURM_JOB_START_TIME",
    "SLURM_CONF",
)
"""Variables that tell a job of Slurm from another one of the same id."""


class NodeAllocation(Record):
    """Nodes that an engine has given to this user.

    Attributes:
        name: what it is called, such as "slurm 4711" or "hosts.txt".
        starter: what starts ranks on its nodes.
        nodes: number of its nodes; None if only the starter knows.
        key: what tells it from others, under which what its nodes have is kept; empty if it may
            change.
    """

    name: str
    starter: Starter
    nodes: int | None
    key: tuple[str, ...] = ()


def find_allocation(
    environment: Mapping[str, str], launcher: str | None, hostfile: str | None
) -> NodeAllocation:
    """Return the allocation that this process is in, or that a hostfile names.

    Args:
        environment: variables that an engine sets.
        launcher: srun or mpirun with options of the user's, or None.
        hostfile: file of hosts for Open MPI, or None.

    Raises:
        UsageError: there is none, or the arguments contradict each other.
    """
    program = _words(launcher, hostfile)
    base = os.path.basename(program[0])
    if base in _OPEN_MPI:
        return _of_open_mpi(environment, program, hostfile)
    if base != "srun":
        raise UsageError(
            f"--launcher: {quoted(base)} is neither srun nor Open MPI's mpirun",
            "'gpulaunch cluster map' writes files for others",
        )
    if hostfile is not None:
        raise UsageError("--hostfile goes with mpirun: Slurm has its own list of nodes")
    return _of_slurm(environment, program)


def _words(launcher: str | None, hostfile: str | None) -> tuple[str, ...]:
    """Return the words of --launcher, or the starter that is meant without it."""
    for option, text in (("--launcher", launcher), ("--hostfile", hostfile)):
        if text is not None and not text.strip():
            raise UsageError(f"{option} has an empty value")
    if launcher is None:
        return ("srun",) if hostfile is None else ("mpirun",)
    try:
        words = shlex.split(launcher)
    except ValueError as problem:
        raise UsageError(f"--launcher: {str(problem).lower()}") from None
    if not words:  # a comment alone
        raise UsageError("--launcher has an empty value")
    return tuple(words)


def _of_open_mpi(
    environment: Mapping[str, str], program: tuple[str, ...], hostfile: str | None
) -> NodeAllocation:
    job = environment.get("SLURM_JOB_ID", "")
    if hostfile is None and not job:
        raise UsageError("no --hostfile is given", "one line for each host: NAME slots=8")
    if hostfile is None:
        return NodeAllocation(f"slurm {job}", Mpirun(program, ()), None)
    if not os.path.isfile(hostfile):
        raise UsageError(f"--hostfile {printable(hostfile)}: there is no such file")
    hosts = hosts_of(read_text(hostfile), os.uname().nodename)
    if not hosts:
        raise UsageError(f"--hostfile {printable(hostfile)} names no host")
    return NodeAllocation(hostfile, Mpirun(program, hosts), len(hosts))


def _of_slurm(environment: Mapping[str, str], program: tuple[str, ...]) -> NodeAllocation:
    job = environment.get("SLURM_JOB_ID", "")
    if not job:
        raise UsageError(
            "this is no Slurm allocation",
            "run it inside salloc or sbatch, or name hosts for mpirun with --hostfile",
        )
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks != "1" and "SLURM_PROCID" in environment:
        raise UsageError(
            f"this is one of the {tasks} tasks of a step",
            "'gpulaunch cluster' starts the tasks itself: call it once, without srun",
        )
    if "SLURM_GPUS_PER_TASK" in environment or "gpu" in environment.get("SLURM_TRES_PER_TASK", ""):
        raise UsageError(
            f"slurm {job} has GPUs for each task, which Slurm deals out itself",
            "make it with --gres=gpu:N or --gpus-per-node=N instead of --gpus-per-task",
        )
    nodes = int(environment.get("SLURM_JOB_NUM_NODES", "1"))
    # Ids begin anew on another cluster, and nodes may leave a job.
    key = ("slurm", job, *(environment.get(name, "") for name in _TELLING))
    return NodeAllocation(f"slurm {job}", Srun(program, nodes), nodes, key)


def ask_nodes(allocation: NodeAllocation, asking: Sequence[str]) -> list[NodeReport]:
    """Return what each node of an allocation has, by a task on each, once.

    Args:
        allocation: the allocation.
        asking: command that prints a node's report.

    Raises:
        FailedError: not every node has answered.
    """
    with tempfile.TemporaryDirectory() as directory:
        start = allocation.starter.on_each_node(asking, directory)
        key = [*allocation.key, os.environ.get("GPULAUNCH_TOPOLOGY", ""), *start.argv]
        if not allocation.key:
            return _answers(allocation, start)
        try:
            kept = own_cache.load(_KEPT)
            if kept["key"] == key:
                return [report_of(document) for document in kept["reports"]]
        except (OSError, KeyError, TypeError, ValueError):
            pass
        reports = _answers(allocation, start)
    own_cache.store(_KEPT, {"key": key, "reports": [*map(report_document, reports)]})
    return reports


def _answers(allocation: NodeAllocation, start: Start) -> list[NodeReport]:
    program = os.path.basename(start.argv[0])
    for path, text in start.files.items():
        write_text(path, text)
    try:
        done = subprocess.run(  # noqa: S603  the user's own starter
            start.argv,
            env=environment_of(start),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=False,
        )
    except OSError as problem:
        raise call_failed(printable(start.argv[0]), problem) from None
    reports = read_reports(done.stdout.decode(errors="replace"))
    expected = allocation.nodes or len(reports)
    if done.returncode or len(reports) != expected or not reports:
        count = f"{len(reports)} of {allocation.nodes}" if allocation.nodes else len(reports)
        raise FailedError(
            f"{allocation.name}: {count} nodes have told what they have; {program} ended with "
            f"status {done.returncode}",
            f"is gpulaunch on each of them? asked by: {shlex.join(start.argv)}",
        )
    names = [report.node.name for report in reports]
    if len(set(names)) < len(names):
        raise FailedError(f"two nodes of {allocation.name} have one name: {', '.join(names)}")
    return reports


def environment_of(start: Start) -> dict[str, str]:
    """Return the environment of a starter."""
    inherited = {name: text for name, text in os.environ.items() if name not in start.without}
    return inherited | dict(start.variables)


def host_names(allocation: NodeAllocation, reports: Sequence[NodeReport]) -> list[str]:
    """Return the names of the nodes as the starter knows them, in the order of the reports."""
    if isinstance(allocation.starter, Mpirun) and allocation.starter.hosts:
        return list(allocation.starter.hosts)
    return [report.node.name for report in reports]


def switches_told_by(allocation: NodeAllocation) -> tuple[Switch, ...]:
    """Return the switches that Slurm's controller knows; () if there is none, or it knows none.

    Tasks are told theirs by the plugin of trees alone.

    Raises:
        UsageError: its text is not understood.
    """
    if not isinstance(allocation.starter, Srun):
        return ()
    try:
        done = subprocess.run(  # noqa: S603  no value of others is in it
            _SHOW_TOPOLOGY, capture_output=True, text=True, check=False
        )
    except OSError:
        return ()
    if done.returncode or not done.stdout.strip():
        return ()
    try:
        return read_topology_conf(done.stdout)
    except FieldError as problem:
        raise located(shlex.join(_SHOW_TOPOLOGY), problem) from None
