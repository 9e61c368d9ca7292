"""The nodes that a cluster engine has given to this user, and how it starts ranks on them.

A task on each node tells what that has. Output of many tasks arrives line by line, and long lines
may be cut or interleaved: a report is therefore sent in numbered lines of less than 1,000
characters.
"""

import json
import os
import shlex
import subprocess
import tempfile
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence

from gpulaunch.decide.decision import admit_visible
from gpulaunch.errors import FailedError, FieldError, UsageError, call_failed, printable, quoted
from gpulaunch.files.document import read_text
from gpulaunch.files.write import write_text
from gpulaunch.lab.cluster.cluster import Cluster, Node
from gpulaunch.lab.cluster.cluster_file import tree_of_file
from gpulaunch.lab.cluster.network import (
    ASSUMED_NODE_GB_PER_S,
    ASSUMPTIONS,
    Switch,
    network_tree,
    read_topology_conf,
)
from gpulaunch.launch.handed_over import hosts_of
from gpulaunch.launch.read_engine import read_place
from gpulaunch.launch.surroundings import Surroundings
from gpulaunch.machine.topology import Topology, part_of_machine, to_rows, topology_of_rows
from gpulaunch.process.system import own_command
from gpulaunch.records import Record

_CPUS = "/sys/devices/system/cpu"
_MARK = "gpulaunch-node"
_CHARACTERS = 800
_SHOW_TOPOLOGY = ("scontrol", "show", "topology")
_OPEN_MPI = ("mpirun", "mpiexec", "orterun", "prterun")
_OPPOSED = (
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_TASKS_PER_NODE",
    "SLURM_DISTRIBUTION",
    "SLURM_CPU_BIND",
    "SLURM_GPU_BIND",
)
"""Wishes of a Slurm allocation for its steps, which the hosts of the ranks replace."""


Start = tuple[tuple[str, ...], dict[str, str]]
"""A program to turn into, with its environment."""


def _for_steps() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name not in _OPPOSED}


class SlurmAllocation(Record):
    """An allocation of salloc or sbatch, where srun starts ranks.

    Attributes:
        name: what it is called, such as "slurm 4711".
        program: srun with the user's options for it.
        hosts: (); srun knows nodes by the names that they tell.
    """

    name: str
    program: tuple[str, ...]
    nodes: int
    hosts: tuple[str, ...] = ()

    def on_each_node(self, argv: Sequence[str], directory: str) -> Start:  # noqa: ARG002  no file
        """Return a step of one task for each node, which leaves all CPUs to each task."""
        options = (
            f"--nodes={self.nodes}",
            f"--ntasks={self.nodes}",
            "--ntasks-per-node=1",
            "--cpu-bind=none",
            "--overlap",
        )
        return (*self.program, *options, *argv), _for_steps()

    def on_ranks(self, argv: Sequence[str], hosts: Sequence[str], directory: str) -> Start:
        """Return a step whose tasks run where a file of hosts, written here, says: a line for each.

        Source: srun(1), --distribution=arbitrary and SLURM_HOSTFILE.
        """
        path = f"{directory}/hosts"
        options = (
            f"--nodes={len(set(hosts))}",
            f"--ntasks={len(hosts)}",
            "--distribution=arbitrary",
            "--cpu-bind=none",
            "--overcommit",  # ranks that are not bound may be more than the cores
        )
        write_text(path, "".join(f"{host}\n" for host in hosts))
        return (*self.program, *options, *argv), _for_steps() | {"SLURM_HOSTFILE": path}

    def switches(self) -> tuple[Switch, ...]:
        """Return the switches that Slurm's controller knows; () if there is none, or it knows none.

        Raises:
            FieldError: its text is not understood.
        """
        try:
            done = subprocess.run(  # noqa: S603  no value of others is in it
                _SHOW_TOPOLOGY, capture_output=True, text=True, check=False
            )
        except OSError:
            return ()
        if done.returncode or not done.stdout.strip():
            return ()
        return read_topology_conf(done.stdout)


class MpiAllocation(Record):
    """Hosts on which mpirun of Open MPI 4.1 or 5 starts ranks.

    Attributes:
        name: what it is called, such as "hosts.txt".
        program: mpirun with the user's options for it.
        hosts: names of the user's hosts; empty inside an allocation that mpirun knows.
    """

    name: str
    program: tuple[str, ...]
    hosts: tuple[str, ...]

    @property
    def nodes(self) -> int | None:
        """Number of nodes; None if only mpirun knows."""
        return len(self.hosts) or None

    def on_each_node(self, argv: Sequence[str], directory: str) -> Start:
        """Return a job of one rank for each node, in the order of the hosts.

        With a hostfile of the user's alone, mpirun would put the machine that it runs on first.
        """
        if self.hosts:
            return self.on_ranks(argv, self.hosts, directory)
        options = ("--map-by", "ppr:1:node", "--bind-to", "none")
        return (*self.program, *options, *argv), dict(os.environ)

    def on_ranks(self, argv: Sequence[str], hosts: Sequence[str], directory: str) -> Start:
        """Return a job whose ranks run where a file of hosts, written here, says: a line for each.

        Each rank binds itself to its core. A rankfile would name cores by Open MPI's own count,
        which is not the kernel's, and 4.1 binds to them whatever else is said.

        Source: mpirun(1), --map-by seq; tried with 4.1.4 and 5.0.11.
        """
        path = f"{directory}/hosts"
        options = ("--hostfile", path, "-np", str(len(hosts)), "--map-by", "seq")
        write_text(path, "".join(f"{host}\n" for host in hosts))
        return (*self.program, *options, "--bind-to", "none", *argv), dict(os.environ)

    def switches(self) -> tuple[Switch, ...]:
        """Return (): mpirun knows no switches."""
        return ()


Allocation = SlurmAllocation | MpiAllocation


def find_allocation(
    environment: Mapping[str, str], launcher: str | None, hostfile: str | None
) -> Allocation:
    """Return the allocation that this process is in, or that a hostfile names.

    Args:
        launcher: srun or mpirun with options of the user's.

    Raises:
        UsageError: there is none, or the arguments contradict each other.
    """
    try:
        default = "srun" if hostfile is None else "mpirun"
        program = tuple(shlex.split(default if launcher is None else launcher))
    except ValueError as problem:
        raise UsageError(f"--launcher: {str(problem).lower()}") from None
    base = os.path.basename(program[0]) if program else ""
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


def _of_open_mpi(
    environment: Mapping[str, str], program: tuple[str, ...], hostfile: str | None
) -> MpiAllocation:
    job = environment.get("SLURM_JOB_ID", "")
    if hostfile is None and not job:
        raise UsageError("no --hostfile is given", "one line for each host: NAME slots=8")
    if hostfile is None:
        return MpiAllocation(f"slurm {job}", program, ())
    if not os.path.isfile(hostfile):
        raise UsageError(f"--hostfile: there is no file {quoted(hostfile)}")
    hosts = hosts_of(read_text(hostfile), os.uname().nodename)
    if not hosts:
        raise UsageError(f"--hostfile {printable(hostfile)} names no host")
    return MpiAllocation(hostfile, program, hosts)


def _of_slurm(environment: Mapping[str, str], program: tuple[str, ...]) -> SlurmAllocation:
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
    return SlurmAllocation(f"slurm {job}", program, nodes)


def _ask_nodes(allocation: Allocation, asking: Sequence[str]) -> list[Node]:
    """Return what each node of an allocation has, by a task on each.

    Args:
        asking: command that prints a node's report.

    Raises:
        FailedError: not every node has answered.
    """
    with tempfile.TemporaryDirectory() as directory:
        argv, environment = allocation.on_each_node(asking, directory)
        try:
            done = subprocess.run(  # noqa: S603  the user's own starter
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                check=False,
            )
        except OSError as problem:
            raise call_failed(printable(argv[0]), problem) from None
    nodes = read_reports(done.stdout.decode(errors="replace"))
    if done.returncode or len(nodes) != (allocation.nodes or len(nodes)) or not nodes:
        count = f"{len(nodes)} of {allocation.nodes}" if allocation.nodes else len(nodes)
        program = os.path.basename(argv[0])
        raise FailedError(
            f"{allocation.name}: {count} nodes have told what they have; {program} ended with "
            f"status {done.returncode}",
            f"is gpulaunch on each of them? asked by: {shlex.join(argv)}",
        )
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        raise FailedError(f"two nodes of {allocation.name} have one name: {', '.join(names)}")
    return nodes


def describe_this_node(topology: Topology) -> tuple[int, Node]:
    """Return the number of this task, which orders the nodes of an allocation, and this node."""
    place = read_place(os.environ)
    name = (place and place.job.node) or os.uname().nodename
    task = (place and place.job.rank) or 0
    sockets: dict[int, dict[int, int]] = {}  # of the CPUs that this process may use, one of a core
    for cpu in sorted(os.sched_getaffinity(0)):
        socket, core = _number(cpu, "physical_package_id", 0), _number(cpu, "core_id", cpu)
        sockets.setdefault(socket, {}).setdefault(core, cpu)
    cores_of = tuple(tuple(cores.values()) for _, cores in sorted(sockets.items()))
    return task, Node(name, topology, cores_of)


def _number(cpu: int, name: str, otherwise: int) -> int:
    try:
        with open(f"{_CPUS}/cpu{cpu}/topology/{name}") as file:
            return int(file.read())
    except (OSError, ValueError):
        return otherwise


def report_lines(task: int, node: Node) -> list[str]:
    """Return the lines by which a node tells what it has."""
    document = {"name": node.name, "topology": to_rows(node.topology), "sockets": node.sockets}
    packed = zlib.compress(json.dumps(document, separators=(",", ":")).encode())
    text = b64encode(packed).decode()
    parts = [text[at : at + _CHARACTERS] for at in range(0, len(text), _CHARACTERS)]
    return [f"{_MARK} {task} {number} {len(parts)} {part}" for number, part in enumerate(parts)]


def read_reports(output: str) -> list[Node]:
    """Return the nodes in the output of all tasks, by task; other lines are skipped.

    Raises:
        FailedError: a report is incomplete or of another version.
    """
    parts: dict[int, dict[int, str]] = {}
    counts: dict[int, int] = {}
    for line in output.splitlines():
        words = line.partition(_MARK)[2].split()
        if len(words) == 4 and all(word.isdecimal() for word in words[:3]):
            task, number, counts[int(words[0])] = map(int, words[:3])
            parts.setdefault(task, {})[number] = words[3]
    nodes = []
    for task, texts in sorted(parts.items()):
        try:
            packed = b64decode("".join(texts[number] for number in range(counts[task])))
            document = json.loads(zlib.decompress(packed))
            sockets = tuple(map(tuple, document["sockets"]))
            topology = topology_of_rows(document["topology"])
            nodes.append(Node(document["name"], topology, sockets))
        except (KeyError, TypeError, ValueError, zlib.error):
            raise FailedError(
                f"the report of node {task} cannot be read",
                "is the same version of gpulaunch installed on all nodes?",
            ) from None
    return nodes


def ask_cluster(
    allocation: Allocation,
    topology: Sequence[str],
    network: str | None,
    warn: Callable[[str], None],
) -> Cluster:
    """Return the cluster that an allocation is: what its nodes tell, and what Slurm does.

    Args:
        network: a topology.conf that is there in place of what Slurm tells.
    """
    nodes = tuple(_ask_nodes(allocation, [*own_command(), "cluster", "node", *topology]))
    gb_per_s = dict.fromkeys((node.name for node in nodes), ASSUMED_NODE_GB_PER_S)
    if network is not None:
        tree = tree_of_file(network, gb_per_s)
    else:
        try:
            tree = network_tree(allocation.switches(), gb_per_s)
        except FieldError as problem:  # Slurm allows switches that nothing joins, and new keys
            warn(f"what Slurm tells of the network is left out: {problem.message}")
            tree = network_tree((), gb_per_s)
    source = f"nodes: asked of them; network: {network or 'as Slurm tells'}; {ASSUMPTIONS}"
    return Cluster(allocation.name, source, nodes, tree)


def within_reach(around: Surroundings) -> Topology:
    """Return the GPUs that a launch on this node may have: those of the engine, else of a lease."""
    topology = around.machine.topology
    place = read_place(os.environ)
    if place and place.grant and place.grant.names is not None:
        names = ",".join(place.grant.names)
        return part_of_machine(topology, admit_visible(topology, names).uuids)
    if around.within:
        topology = part_of_machine(topology, around.within.uuids)
    if around.visible is None:
        return topology
    return part_of_machine(topology, admit_visible(around.machine.topology, around.visible).uuids)
