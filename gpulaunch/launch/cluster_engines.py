"""Cluster engines: what their variables tell a process of its job, its GPUs and its rank.

Some engines grant GPUs (Slurm, Ray), some only start ranks (Open MPI, MPICH, torchrun), and
they come inside each other: mpirun inside a job of Slurm has the GPUs of the one and the ranks of
the other. To add an engine, write its functions and its row in ENGINES.

Sources: environments captured from Slurm 22.05, Open MPI 4.1 and 5.0, MPICH 5.0 and Ray 2.60; for
torchrun torch/distributed/elastic/agent/server/local_elastic_agent.py of PyTorch.
"""
# pure: decides on plain values

from collections.abc import Callable, Mapping

from gpulaunch.records import Record

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
        number: rank in the whole launch.
        local: number among the ranks on this node.
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
        engine: name of the engine that gave the GPUs, else of the one that started the ranks.
        id: id of its job or step; ends in "/" if the engine that started the ranks has none.
        grant: GPUs that it gave; None if the engines here give none.
        rank: the rank; None for a process that is none.
        ranks_by: name of the engine that started the ranks; empty without a rank.
        node: name of this node there; None if it is not told.
        elsewhere: nodes that have the GPUs, if this process is not on one of them; else empty.
    """

    engine: str
    id: str
    grant: GpuGrant | None
    rank: Rank | None
    ranks_by: str
    node: str | None
    elsewhere: str
    ask: str

    @property
    def title(self) -> str:
        """Engine and id, as in messages."""
        return f"{self.engine} {self.id}"


def read_place(environment: Environment) -> EnginePlace | None:
    """Return the place of a process with these variables in the engines around it, or None."""
    around = [engine for engine in ENGINES if engine.sign in environment]
    if not around:
        return None
    ranked = next(
        ((one, rank) for one in around if one.rank and (rank := one.rank(environment))), None
    )
    granting = next((one for one in around if one.ask), None)
    starter, rank = ranked or (None, None)
    engine = granting or starter
    if engine is None:  # a sign alone, as in a program that mpirun's user has set up
        return None
    names = [environment[name] for one in around for name in one.node if environment.get(name)]
    return EnginePlace(
        engine=engine.name,
        id=_id_of(engine, starter, rank, environment),
        grant=granting.grant(environment) if granting and granting.grant else None,
        rank=rank,
        ranks_by=starter.name if starter else "",
        node=names[0] if names else None,
        elsewhere=_elsewhere(environment) if granting and granting.name == "slurm" else "",
        ask=engine.ask,
    )


def _id_of(
    engine: Engine, starter: Engine | None, rank: Rank | None, environment: Environment
) -> str:
    """Return the id of the job, or of the step whose ranks divide its GPUs."""
    if engine is starter and rank:
        return rank.step
    job = environment[engine.sign]
    return f"{job}/{rank.step}" if rank else job


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
