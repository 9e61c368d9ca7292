"""A launch's place in cluster engines: what they granted to it, and which rank it is.

Some engines grant GPUs (Slurm, Ray), some only start ranks (Open MPI, MPICH, torchrun), and
they come inside each other: mpirun inside a job of Slurm has the GPUs of the one and the ranks of
the other. To add an engine, write its functions and its row in ENGINES.

Sources: environments captured from Slurm 22.05, Open MPI 4.1 and 5.0, MPICH 5.0 and Ray 2.60; for
torchrun torch/distributed/elastic/agent/server/local_elastic_agent.py of PyTorch.
"""

import json
import os
import socket
from collections.abc import Callable, Mapping
from itertools import count
from operator import attrgetter
from typing import Any

from gpulaunch.decide.decision import Constraint, Request, admit_only, admit_visible
from gpulaunch.errors import FieldError, UsageError, printable
from gpulaunch.files.document import read_text
from gpulaunch.files.fields import FieldTable, checked
from gpulaunch.launch.options import Options
from gpulaunch.leases.environment import BATCH_VARIABLE
from gpulaunch.leases.lease import EngineJob, Lease
from gpulaunch.machine.gpu import gpus_text
from gpulaunch.machine.topology import Topology
from gpulaunch.process.system import stat_fields
from gpulaunch.records import Record, replace

Environment = Mapping[str, str]

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MOST_DIGITS = 10
_NONE = ("", "-1", "NoDevFiles")
"""Words in CUDA_VISIBLE_DEVICES for no GPU."""


class GpuGrant(Record):
    """The GPUs that an engine gave a process on its node.

    Attributes:
        names: indices or UUIDs; empty for no GPU, None if the engine does not tell which.
        shared: whether it gives the same GPUs to other jobs, too.
        all: number of GPUs that it gave the job on this node; 0 if it does not tell.
    """

    names: tuple[str, ...] | None
    shared: bool = False
    all: int = 0


class Rank(Record):
    """A process's place among those that an engine has started together.

    Attributes:
        step: what tells their launch from others on this node; empty if the engine does not.
        local_size: how many there are on this node.
    """

    step: str
    number: int
    local: int
    local_size: int


class Engine(Record):
    """A cluster engine.

    Attributes:
        sign: variable that all of its processes have.
        grant: function that returns what it granted, None if it does not do so here; None if it
            grants no GPUs.
        rank: function that returns the rank, None for a process that is no rank; None if it starts
            no ranks.
        node: variables with the name of the node, any of which may be missing.
        ask: how to ask it for GPUs; empty if it has none to give.
    """

    name: str
    sign: str
    grant: Callable[[Environment], GpuGrant | None] | None
    rank: Callable[[Environment], Rank | None] | None
    node: tuple[str, ...] = ()
    ask: str = ""


class EnginePlace(Record):
    """The place of a process in the engines around it.

    Attributes:
        job: the job or step there, of the engine that gave the GPUs, else of the one that started
            the ranks. Its id lacks that of the step if the latter has none: it ends in "/".
        grant: GPUs that it gave; None if the engines here give none.
        visible: what programs of the engine that started the ranks expect to see of the GPUs.
        elsewhere: nodes that have the GPUs, if this process is not on one of them; else empty.
    """

    job: EngineJob
    grant: GpuGrant | None
    visible: str
    elsewhere: str
    ask: str


def read_place(environment: Environment) -> EnginePlace | None:
    """Return the place of a process with these variables in the engines around it, or None."""
    around = [engine for engine in ENGINES if engine.sign in environment]
    ranked = next(
        ((one, rank) for one in around if one.rank and (rank := one.rank(environment))), None
    )
    granting = next((one for one in around if one.ask), None)
    starter, rank = ranked or (None, None)
    engine = granting or starter
    if engine is None:  # outside of any, or a sign alone, as mpirun's user may have set it up
        return None
    # The job, or the step whose ranks divide its GPUs.
    step = rank.step if rank else ""
    if engine is not starter or rank is None:
        step = f"{environment[engine.sign]}/{step}" if rank else environment[engine.sign]
    grant = granting.grant(environment) if granting and granting.grant else None
    names = [environment[name] for one in around for name in one.node if environment.get(name)]
    job = EngineJob(
        engine=engine.name,
        id=printable(step)[:200],
        user_id=os.geteuid(),
        rank=rank.number if rank else None,
        shared=bool(grant and grant.shared),
        node=printable(names[0])[:200] if names else "",
    )
    if rank and rank.local_size > 1:
        bound = job.shared or bool(grant and grant.names and len(grant.names) < grant.all)
        job = replace(job, local_rank=rank.local, ranks=rank.local_size, bound=bound)
    return EnginePlace(
        job,
        grant,
        "ranks" if starter and starter.name == "torchrun" else "all",
        _elsewhere(environment) if granting and granting.name == "slurm" else "",
        engine.ask,
    )


def _number(environment: Environment, name: str) -> int | None:
    """Return a variable's number; None if it is missing or none."""
    text = environment.get(name, "")
    return int(text) if _is_number(text) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS


def _rank(
    environment: Environment, step: str, number: str, local: str, local_size: int | None
) -> Rank | None:
    """Return the rank that variables tell; None if one is missing or they contradict each other."""
    numbers = _number(environment, number), _number(environment, local)
    if numbers[0] is None or numbers[1] is None or local_size is None:
        return None
    return Rank(step, numbers[0], numbers[1], local_size) if numbers[1] < local_size else None


def _visible(environment: Environment) -> tuple[str, ...]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES, up to the first word for none, as CUDA does."""
    names = []
    for name in environment.get(_VISIBLE, "").split(","):
        if name.strip() in _NONE:
            break
        names.append(name.strip())
    return tuple(names)


# ------------------------------------------------------------------------------------------- Slurm


def _slurm_grant(environment: Environment) -> GpuGrant:
    """Return what Slurm granted the task, or the batch script.

    CUDA_VISIBLE_DEVICES counts what the task can see: with device cgroups from 0, without them as
    the node does. The other two always count as the node does, and help where a script has removed
    the first. A share by MPS names no GPU.
    """
    told = environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or ""
    names = _visible(environment) or tuple(filter(None, told.split(",")))
    count = _number(environment, "SLURM_GPUS_ON_NODE") or 0
    if not names and not count and "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in environment:
        return GpuGrant(None, shared=True)
    return GpuGrant(names, "SLURM_SHARDS_ON_NODE" in environment, count)


def _slurm_rank(environment: Environment) -> Rank | None:
    """Return the task's place in its step; a batch script is in none."""
    step = environment.get("SLURM_STEP_ID")
    if step is None:
        return None
    sizes = _repeated(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number(environment, "SLURM_NODEID") or 0
    size = sizes[node] if node < len(sizes) else None
    title = f"{environment['SLURM_JOB_ID']}.{step}"
    return _rank(environment, title, "SLURM_PROCID", "SLURM_LOCALID", size)


_MOST_NODES = 1 << 16


def _repeated(text: str) -> list[int]:
    """Return the numbers of Slurm's "2(x3),1"; empty if it is no such text."""
    found: list[int] = []
    for part in text.split(","):
        number, _, times = part.removesuffix(")").partition("(x")
        if not (_is_number(number) and _is_number(times or "1")):
            return []
        found += [int(number)] * min(int(times or "1"), _MOST_NODES)
    return found


def _elsewhere(environment: Environment) -> str:
    """Return the job's nodes for a shell of salloc, which may run on none of them."""
    if "SLURMD_NODENAME" in environment:
        return ""
    return environment.get("SLURM_JOB_NODELIST", "its nodes")


# --------------------------------------------------------------------------------------- the others


def _cuda_grant(environment: Environment) -> GpuGrant | None:
    """Return what CUDA_VISIBLE_DEVICES says; None where the engine was told not to set it."""
    return GpuGrant(_visible(environment)) if _VISIBLE in environment else None


def _open_mpi_rank(environment: Environment) -> Rank | None:
    return _rank(
        environment,
        environment.get("PMIX_NAMESPACE", ""),
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        _number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"),
    )


def _hydra_rank(environment: Environment) -> Rank | None:
    """Return the place that MPICH's and Intel MPI's mpiexec tell, which have no id of a job."""
    size = _number(environment, "MPI_LOCALNRANKS")
    return _rank(environment, "", "PMI_RANK", "MPI_LOCALRANKID", size)


def _torchrun_rank(environment: Environment) -> Rank | None:
    """Return the worker's place; torchrun's own id is "none" unless somebody chose one."""
    run = environment["TORCHELASTIC_RUN_ID"]
    step = f"{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}"
    size = _number(environment, "LOCAL_WORLD_SIZE")
    return _rank(
        environment, step if run == "none" else f"{run}@{step}", "RANK", "LOCAL_RANK", size
    )


ENGINES = (
    Engine("torchrun", "TORCHELASTIC_RUN_ID", None, _torchrun_rank),
    Engine("mpi", "OMPI_COMM_WORLD_RANK", None, _open_mpi_rank, node=("PMIX_HOSTNAME",)),
    Engine("mpi", "MPI_LOCALRANKID", None, _hydra_rank, node=("PMI_HOSTNAME",)),
    Engine("ray", "RAY_JOB_ID", _cuda_grant, None, ask="@ray.remote(num_gpus=N)"),
    Engine(
        "slurm",
        "SLURM_JOB_ID",
        _slurm_grant,
        _slurm_rank,
        node=("SLURMD_NODENAME",),
        ask="srun --gres=gpu:N, or --gpus-per-task=N",
    ),
)
"""The known engines, the innermost first where one runs inside another."""


# ------------------------------------------------------------------------------- maps of ranks


_MOST_MAP_BYTES = 16 << 20
_MOST = (0, 1 << 31)
_ROW: FieldTable = {"rank": _MOST, "node": str, "core": _MOST, "gpu": _MOST}


class MappedRank(Record):
    """One rank's row of a map of ranks, as `gpulaunch cluster map` writes it.

    Attributes:
        core: number of its CPU there, as Linux counts them; None for any.
        gpu: index of its GPU there.
    """

    rank: int
    node: str
    core: int | None
    gpu: int


def parse_rank_map(text: str, path: str) -> tuple[MappedRank, ...]:
    """Return the rows of a map in the order of their ranks.

    Raises:
        UsageError: it is no map of ranks, or gives a rank or a GPU twice.
    """
    try:
        listed = json.loads(text)["ranks"]
        rows = sorted(map(_parse_row, count(), listed), key=attrgetter("rank"))
    except FieldError as problem:
        which = f"{problem.path[0]}: " if len(problem.path) > 1 else ""
        raise UsageError(f"{path}: {which}{problem.message}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{path}: no map of ranks, which is JSON with a list 'ranks'") from None
    ranks: set[int] = set()
    holders: dict[tuple[str, int], int] = {}
    for row in rows:
        if row.rank in ranks:
            raise UsageError(f"{path}: rank {row.rank} stands there twice")
        ranks.add(row.rank)
        first = holders.setdefault((row.node, row.gpu), row.rank)
        if first != row.rank:
            raise UsageError(
                f"{path}: ranks {first} and {row.rank} both have GPU {row.gpu} of {row.node}"
            )
    return tuple(rows)


def _parse_row(at: int, row: dict[str, Any]) -> MappedRank:
    """Return one row; keys that are unknown here are ignored."""
    known = {key: row[key] for key in _ROW if row.get(key) is not None}
    checked(known, _ROW, required=("rank", "node", "gpu"), where=(f"row {at}",))
    return MappedRank(known["rank"], known["node"], known.get("core"), known["gpu"])


# ----------------------------------------------------------------------- what a launch takes of it


class EngineTerms(Record):
    """What an engine says of a launch.

    Attributes:
        constraints: the GPUs that were granted, and those that a map of ranks names.
        visible: what the job sees of its step's GPUs, unless a setting says it.
        hides: whether the constraints stand for what CUDA_VISIBLE_DEVICES says.
        ranks: number of ranks on this node that divide the GPUs; 1 if none do.
    """

    job: EngineJob
    constraints: tuple[Constraint, ...] = ()
    visible: str = "all"
    core: int | None = None
    hides: bool = False
    ranks: int = 1

    def applied_to(self, request: Request, topology: Topology) -> Request:
        """Return a launch's request with what the engine says of it.

        Raises:
            UsageError: the engine does not tell which GPU it gave.
        """
        constraints = (*request.constraints, *self.constraints)
        gpus = topology.gpus
        left = [gpu for gpu in gpus if all(gpu.uuid in one.uuids for one in constraints)]
        if self.job.shared and not self.constraints and len(left) != 1:
            raise UsageError(
                f"{self.job.title} has a share by MPS, and does not tell on which of "
                f"{gpus_text(len(left))}",
                "name it: --only GPU",
            )
        return replace(request, constraints=constraints, engine_job=self.job)


def read_engine(options: Options, topology: Topology, within: Lease | None) -> EngineTerms | None:
    """Return what the engines around this process say of a launch; None outside of any.

    All that was granted becomes the default number of GPUs, but not in a batch. Inside a lease of
    the same job the launch is an ordinary one, of the GPUs of that lease.

    Args:
        options: options of the launch, which get that default.
        within: the lease that it runs inside of, or None.

    Raises:
        UsageError: nothing was granted here, or a map of ranks does not fit.
    """
    mapped, origin = options.rank_map, options.origin("rank_map")
    if options.ignore_engine:
        if mapped:
            raise UsageError(f"{origin} goes by the rank, which -o ignore_engine=true leaves out")
        return None
    place = read_place(os.environ)
    if place is None:
        if mapped:
            raise UsageError(f"{origin}: no cluster engine tells this process its rank")
        return None
    job = place.job
    if job.rank is not None and job.id[-1:] in ("", "/"):
        fields = stat_fields(os.getsid(0))  # MPICH's mpiexec tells no id: its ranks have one parent
        job = replace(job, id=f"{job.id}pid {fields[1] if fields else 0}")
    if within is not None and within.is_of(job):
        return EngineTerms(job)
    constraints = [] if place.grant is None else _read_grant(place, topology)
    if mapped and options.share:
        raise UsageError(f"{origin} gives each rank a GPU of its own, without --share")
    if options.share:  # then several ranks may have one GPU
        job = replace(job, ranks=1)
    elif place.grant is not None and options.gpus is None and BATCH_VARIABLE not in os.environ:
        options.set_default("gpus", "all", f"what {place.job.title} granted")
    terms = EngineTerms(
        job,
        tuple(constraints),
        place.visible,
        hides=bool(constraints),
        ranks=job.ranks if job.is_divided else 1,
    )
    return _with_rank_map(terms, place, mapped, options, topology) if mapped else terms


def _read_grant(place: EnginePlace, topology: Topology) -> list[Constraint]:
    """Return the GPUs that an engine granted on this node; empty if it does not tell which."""
    grant, title = place.grant, place.job.title
    if place.elsewhere:
        raise UsageError(
            f"{title} has its GPUs on {printable(place.elsewhere)}, and this is no task of it",
            "write 'srun gpulaunch ...', or go past it with -o ignore_engine=true",
        )
    if grant is None or grant.names is None:
        return []
    where = f" on {place.job.node}" if place.job.node else ""
    if not grant.names:
        raise UsageError(
            f"{title} was granted no GPU{where}",
            f"ask for GPUs: {place.ask}; -o ignore_engine=true goes past that",
        )
    names = ",".join(grant.names)
    found = admit_visible(topology, names)
    if not found.uuids:
        raise UsageError(
            f"{title} was granted GPU {printable(names)}{where}, which is none of the "
            f"{len(topology.gpus)} of {topology.name}"
        )
    return [Constraint(f"what {title} granted", found.uuids)]


def _with_rank_map(
    terms: EngineTerms,
    place: EnginePlace,
    path: str,
    options: Options,
    topology: Topology,
) -> EngineTerms:
    """Return the terms with the rank's GPU and core by a map."""
    rows = parse_rank_map(read_text(path, _MOST_MAP_BYTES), path)
    job = place.job
    if job.rank is None:
        raise UsageError(f"{options.origin('rank_map')}: {job.title} tells this process no rank")
    if options.gpus not in (None, 1, "all"):
        raise UsageError(f"{options.origin('gpus')}: the map in {path} gives each rank one GPU")
    row = next((row for row in rows if row.rank == job.rank), None)
    if row is None:
        raise UsageError(f"{path}: rank {job.rank} of {job.title} is not among its {len(rows)}")
    names = [name for name in (job.node, socket.gethostname()) if name]
    if row.node not in (*names, *(name.partition(".")[0] for name in names)):
        raise UsageError(f"{path}: rank {row.rank} belongs on {row.node}, and runs on {names[0]}")
    beside = [one for one in rows if one.node == row.node]
    if len(beside) != job.ranks or beside[job.local_rank] != row:
        raise UsageError(
            f"{path}: rank {row.rank} is number {beside.index(row)} of {len(beside)} on "
            f"{row.node}, and number {job.local_rank} of {job.ranks} in {job.title}"
        )
    gpus = [_gpu_of(one, terms, topology, path) for one in beside]
    options.set_default("gpus", 1, path)
    if len(beside) == 1:
        own = Constraint(f"rank {row.rank} of {path}", frozenset(gpus))
        return replace(terms, constraints=(*terms.constraints, own), core=row.core)
    job = replace(terms.job, group=tuple(gpus), bound=False)
    return replace(terms, job=job, core=row.core, ranks=len(gpus))


def _gpu_of(row: MappedRank, terms: EngineTerms, topology: Topology, path: str) -> str:
    """Return the UUID of a row's GPU, which must be one that was granted."""
    text = f"{path}: rank {row.rank}"
    (uuid,) = admit_only(topology, [str(row.gpu)], text).uuids
    for constraint in terms.constraints:
        if uuid not in constraint.uuids:
            raise UsageError(
                f"{text} is to have GPU {row.gpu} of {row.node}, not {constraint.text}"
            )
    return uuid
