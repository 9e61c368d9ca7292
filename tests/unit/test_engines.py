"""What cluster engines tell a process; the environments are captured, less what nobody reads."""

import pytest

from gpulaunch.cluster.engines import ENGINES, EnginePlace, GpuGrant, Rank, read_place
from gpulaunch.cluster.far_ranks import explain_mpirun, explain_srun
from gpulaunch.launch.read_launch import _SIGNS

# Slurm 22.05.8: srun -N1 -n2 --gres=gpu:4, second task
STEP = {
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    "SLURMD_NODENAME": "n1",
    "SLURM_GPUS_ON_NODE": "4",
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_GPUS": "0,1,2,3",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_TOPOLOGY_ADDR": "top.s1.n1",
}
# the same: sbatch -N1 -n4 --gres=gpu:4
BATCH = {
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    "SLURMD_NODENAME": "n1",
    "SLURM_GPUS_ON_NODE": "4",
    "SLURM_JOB_GPUS": "0,1,2,3",
    "SLURM_JOB_ID": "4712",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "4",
}
SALLOC = {
    "SLURM_JOB_ID": "4713",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NTASKS": "4",
}
# Open MPI 5.0.11: mpirun -np 4 on na and nb, the fourth rank
OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_WORLD_LOCAL_SIZE": "2",
    "PMIX_HOSTNAME": "nb",
    "PMIX_NAMESPACE": "prterun-vm-13693@1",
    "PMIX_RANK": "3",
}
# MPICH 5.0: mpiexec -n 2, second rank
HYDRA = {
    "HYDI_CONTROL_FD": "7",
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
    "PMI_FD": "11",
    "PMI_HOSTNAME": "vm",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}
# the names that PyTorch's local_elastic_agent.py sets; the values of torchrun --nproc-per-node 2
TORCHRUN = {
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "RANK": "1",
    "TORCHELASTIC_RUN_ID": "none",
    "WORLD_SIZE": "2",
}
# Ray 2.60: a task with num_gpus=2, and one without
RAY = {"CUDA_VISIBLE_DEVICES": "0,1", "RAY_JOB_ID": "ffffffff", "RAY_RAYLET_PID": "25446"}
FOUR = ("0", "1", "2", "3")


def place(environment: dict[str, str]) -> EnginePlace:
    """Return the place that there certainly is."""
    found = read_place(environment)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("environment", "title", "rank", "node"),
    [
        pytest.param(BATCH, "slurm 4712", None, "n1", id="sbatch"),
        pytest.param(
            OPEN_MPI_5,
            "mpi prterun-vm-13693@1",
            Rank("prterun-vm-13693@1", 3, 1, 2),
            "nb",
            id="open mpi 5",
        ),
        pytest.param(HYDRA, "mpi ", Rank("", 1, 1, 2), "vm", id="mpich"),
        pytest.param(
            TORCHRUN | {"TORCHELASTIC_RUN_ID": "x"},
            "torchrun x@127.0.0.1:29500",
            Rank("x@127.0.0.1:29500", 1, 1, 2),
            None,
            id="torchrun with an id",
        ),
        pytest.param(RAY, "ray ffffffff", None, None, id="ray"),
        pytest.param(
            BATCH | OPEN_MPI_5,
            "slurm 4712/prterun-vm-13693@1",
            Rank("prterun-vm-13693@1", 3, 1, 2),
            "nb",
            id="mpirun in a batch script",
        ),
        pytest.param(
            STEP | TORCHRUN,
            "slurm 4711/127.0.0.1:29500",
            Rank("127.0.0.1:29500", 1, 1, 2),
            "n1",
            id="torchrun in a step",
        ),
    ],
)
def test_place(
    environment: dict[str, str], title: str, rank: Rank | None, node: str | None
) -> None:
    """Each engine tells its job, the rank and the node; the ranks are those of the innermost."""
    found = place(environment)
    assert (found.title, found.rank, found.node) == (title, rank, node)


@pytest.mark.parametrize(
    ("environment", "grant"),
    [
        pytest.param(
            STEP | {"CUDA_VISIBLE_DEVICES": ""}, GpuGrant(FOUR, all=4), id="of the step, if removed"
        ),
        pytest.param(
            BATCH | {"CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_JOB_GPUS": "2"},
            GpuGrant(("2",), all=4),
            id="of the job, in a batch script",
        ),
        pytest.param(
            STEP | {"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_STEP_GPUS": "2,3"},
            GpuGrant(("2", "3"), all=4),
            id="some of the job's, for the task alone",
        ),
        pytest.param(
            STEP | {"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "5", "SLURM_GPUS_ON_NODE": "1"},
            GpuGrant(("0",), all=1),
            id="counted under device cgroups",
        ),
        pytest.param(
            SALLOC | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"},
            GpuGrant(None, shared=True),
            id="a share by MPS, nobody knows where",
        ),
        pytest.param(
            STEP | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"},
            GpuGrant(FOUR, all=4),
            id="whole GPUs, and the user's own MPS",
        ),
        pytest.param(
            STEP | {"SLURM_SHARDS_ON_NODE": "2"}, GpuGrant(FOUR, shared=True, all=4), id="shards"
        ),
        pytest.param(OPEN_MPI_5 | BATCH, GpuGrant(FOUR, all=4), id="Slurm around mpirun has"),
        pytest.param(TORCHRUN, None, id="torchrun has none to give"),
        pytest.param(RAY, GpuGrant(("0", "1")), id="ray"),
        pytest.param({"RAY_JOB_ID": "1"}, None, id="ray that does not say"),
        pytest.param(RAY | {"CUDA_VISIBLE_DEVICES": "-1"}, GpuGrant(()), id="ray, nothing"),
    ],
)
def test_grant(environment: dict[str, str], grant: GpuGrant | None) -> None:
    """Slurm and Ray tell which GPUs they granted here; the others grant none."""
    assert place(environment).grant == grant


@pytest.mark.parametrize(
    ("text", "node", "size"),
    [("2(x3),1", 2, 2), ("2(x3),1", 3, 1), ("2(x3)", 3, None), ("9" * 99, 0, None)],
)
def test_sizes_of_slurm(text: str, node: int, size: int | None) -> None:
    """The number of a step's tasks on a node is read from Slurm's list, also a repeated one."""
    environment = STEP | {
        "SLURM_STEP_TASKS_PER_NODE": text,
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": "0",
    }
    rank = place(environment).rank
    assert (rank and rank.local_size) == size


@pytest.mark.parametrize(
    "broken",
    [
        {"SLURM_LOCALID": "x"},
        {"SLURM_LOCALID": "2"},
    ],
    ids=str,
)
def test_rank_that_is_none(broken: dict[str, str]) -> None:
    """Numbers that are missing, wrong, or contradict each other tell no rank."""
    assert place(STEP | broken).rank is None


def test_outside_of_engines() -> None:
    """A process has no place without an engine's sign, whatever else it has."""
    assert read_place({"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "0", "PMI_RANK": "1"}) is None


def test_signs() -> None:
    """A launch looks for the signs of all engines, and of a map of ranks, before it reads more."""
    assert set(_SIGNS) == {engine.sign for engine in ENGINES} | {"GPULAUNCH_RANK_MAP"}


# --------------------------------------------------------------------------------- ranks elsewhere


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("mpirun --host here,there:4 ./prog", "there"),
        ("mpirun --mca plm ssh --hostfile hosts ./prog", "a, b, c, ..."),
        ("mpirun --bind-to none -np 8 --hostfile=hosts ./prog", "a, b, c, ..."),
        ("mpirun --host here,localhost,here.site ./prog", None),
        ("mpirun -np 8 ./prog --host there", None),
        ("mpirun --hostfile missing ./prog", None),
        ("mpirun --hostfile hosts gpulaunch -n 1 -- ./prog", None),
    ],
)
def test_ranks_of_mpirun_elsewhere(line: str, shown: str | None) -> None:
    """Hosts other than this one are named, unless each rank has a launch of its own."""
    files = {"hosts": "# all\nhere slots=2\na slots=2\n\nb\nb\nc # last\nd\n"}
    told = explain_mpirun(line.split(), {}, ["here.site"], lambda path: files.get(path, ""))
    assert (told and told.partition("starts ranks on ")[2].partition(", too,")[0]) == shown


@pytest.mark.parametrize(
    ("line", "environment", "nodes"),
    [
        ("srun -N2 ./prog", {"SLURM_JOB_ID": "7"}, "2 nodes"),
        ("srun --nodes=2-4 ./prog", {"SLURM_JOB_ID": "7"}, "2 nodes"),
        ("srun ./prog", {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}, "3 nodes"),
        ("srun -N 1 ./prog -N2", {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}, None),
        ("srun ./prog", {}, "where it likes"),
        ("srun -N2 gpulaunch -- ./prog", {}, None),
    ],
)
def test_tasks_of_srun_elsewhere(line: str, environment: dict[str, str], nodes: str | None) -> None:
    """Tasks that srun starts on other nodes are told of with the number of nodes."""
    told = explain_srun(line.split(), environment)
    assert (told is None) if nodes is None else (told is not None and nodes in told)
