"""The allocation that a cluster engine has made, and what its nodes have."""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence

from gpulaunch.cluster.network import Switch
from gpulaunch.cluster.network_text import located
from gpulaunch.cluster.node_report import NodeReport, read_reports, report_document, report_of
from gpulaunch.cluster.open_mpi import Mpirun
from gpulaunch.cluster.slurm import Srun
from gpulaunch.cluster.slurm_topology import read_topology_conf
from gpulaunch.cluster.starter import Start, Starter
from gpulaunch.errors import FailedError, FieldError, UsageError, call_failed, printable, quoted
from gpulaunch.files import own_cache
from gpulaunch.files.document import read_text
from gpulaunch.records import Record

_SHOW_TOPOLOGY = ("scontrol", "show", "topology")
_OPEN_MPI = ("mpirun", "mpiexec", "orterun", "prterun")


class NodeAllocation(Record):
    """Nodes that an engine has given to this user.

    Attributes:
        name: what it is called, such as "slurm 4711" or "hosts.txt".
        starter: what starts ranks on its nodes.
        nodes: number of its nodes; None if only the starter knows.
        key: name under which what its nodes have is kept; None if it may change.
    """

    name: str
    starter: Starter
    nodes: int | None
    key: str | None


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
    program = tuple(_words(launcher)) if launcher else ("mpirun",) if hostfile else ("srun",)
    base = os.path.basename(program[0])
    job = environment.get("SLURM_JOB_ID", "")
    if base in _OPEN_MPI:
        if hostfile is None and not job:
            raise UsageError("no --hostfile is given", "one line for each host: NAME slots=8")
        if hostfile is not None and not os.path.isfile(hostfile):
            raise UsageError(f"--hostfile {printable(hostfile)}: there is no such file")
        name = f"slurm {job}" if hostfile is None else hostfile
        return NodeAllocation(name, Mpirun(program, hostfile), None, None)
    if base != "srun":
        raise UsageError(
            f"--launcher: {quoted(base)} is neither srun nor Open MPI's mpirun",
            "'gpulaunch cluster map' writes files for others",
        )
    if hostfile is not None:
        raise UsageError("--hostfile goes with mpirun: Slurm has its own list of nodes")
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
    nodes = int(environment.get("SLURM_JOB_NUM_NODES", "1"))
    again = environment.get("SLURM_RESTART_COUNT", "0")
    return NodeAllocation(
        f"slurm {job}", Srun(program, nodes), nodes, f"gpulaunch.nodes.{job}.{again}.json"
    )


def _words(launcher: str) -> list[str]:
    try:
        words = shlex.split(launcher)
    except ValueError as problem:
        raise UsageError(f"--launcher: {str(problem).lower()}") from None
    if not words:
        raise UsageError("--launcher has an empty value")
    return words


def ask_nodes(allocation: NodeAllocation, asking: Sequence[str]) -> list[NodeReport]:
    """Return what each node of an allocation has, by a task on each, once.

    Args:
        allocation: the allocation.
        asking: command that prints a node's report.

    Raises:
        FailedError: not every node has answered.
    """
    if allocation.key:
        try:
            kept = own_cache.load(allocation.key)
            if kept["asking"] == list(asking):
                return [report_of(document) for document in kept["reports"]]
        except (OSError, KeyError, TypeError, ValueError):
            pass
    reports = _answers(allocation, asking)
    if allocation.key:
        documents = [report_document(report) for report in reports]
        own_cache.store(allocation.key, {"asking": list(asking), "reports": documents})
    return reports


def _answers(allocation: NodeAllocation, asking: Sequence[str]) -> list[NodeReport]:
    start = allocation.starter.on_each_node(asking)
    program = os.path.basename(start.argv[0])
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
    """Return the names of the nodes as the starter knows them, in the order of the reports.

    Raises:
        UsageError: the hostfile names another number of hosts.
    """
    if not isinstance(allocation.starter, Mpirun) or allocation.starter.hostfile is None:
        return [report.node.name for report in reports]
    path = allocation.starter.hostfile
    lines = (line.partition("#")[0].split() for line in read_text(path).splitlines())
    hosts = list(dict.fromkeys(words[0] for words in lines if words))
    if len(hosts) != len(reports):
        raise UsageError(
            f"{printable(path)} names {len(hosts)} hosts, and {len(reports)} have answered"
        )
    return hosts


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
