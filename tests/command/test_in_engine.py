"""Launches with the environment of a cluster engine around them, where the engine cannot be run.

tests/host/test_slurm.py and tests/host/test_mpi.py have the engines themselves.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from conftest import DGX, SHOW, Held, Launcher, complaint, held, until
from toml_parser import tomllib
from values import cases

pytest_plugins = ("fake_nvml",)

CASES = tomllib.loads(Path(__file__).with_name("in_engine.toml").read_text())
NO_PERMISSION = 4  # NVML_ERROR_NO_PERMISSION


def slurm(rank: int = 0, ranks: int = 1, gpus: str = "", **more: str) -> dict[str, str]:
    """Return the variables of a task of Slurm that was granted some GPUs."""
    granted = {
        "CUDA_VISIBLE_DEVICES": gpus,
        "SLURM_STEP_GPUS": gpus,
        "SLURM_GPUS_ON_NODE": str(len(gpus.split(","))),
    }
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_NODEID": "0",
        "SLURMD_NODENAME": "n1",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_STEP_TASKS_PER_NODE": str(ranks),
        **(granted if gpus else {}),
        **more,
    }


@contextmanager
def inside(launcher: Launcher, environment: dict[str, str]) -> Iterator[Launcher]:
    """Let launches have these variables for the length of the block."""
    before = dict(launcher.environment)
    launcher.environment |= environment
    yield launcher
    launcher.environment.clear()
    launcher.environment |= before


def held_ranks(
    stack: ExitStack, launcher: Launcher, environments: list[dict[str, str]], *options: str
) -> list[str]:
    """Start a launch in each rank, the last one first; what each sees, in the order of ranks."""
    shown = []
    for environment in reversed(environments):
        with inside(launcher, environment):
            shown.append(stack.enter_context(held(launcher, *DGX, *options)).gpus)
    return shown[::-1]


def leases(launcher: Launcher) -> list[dict]:
    return json.loads(launcher.run("status", *DGX, "--json").stdout)["leases"]


def test_ranks_of_mpich(launcher: Launcher, tmp_path: Path) -> None:
    """Ranks of MPICH, whose mpiexec tells no id of the job, are known by their common parent."""
    starter = tmp_path / "mpiexec"  # each rank in a session of its own, as hydra_pmi_proxy does
    starter.write_text(
        "for rank in 0 1 2 3; do\n"
        ' MPI_LOCALRANKID=$rank MPI_LOCALNRANKS=4 PMI_RANK=$rank setsid -w "$@" &\n'
        "done\nwait\n"
    )
    job = ("sh", "-c", "echo $MPI_LOCALRANKID $CUDA_VISIBLE_DEVICES; sleep 0.1")
    launch = (launcher.script, *DGX, "-n", "1", "-o", "visible=own", "--", *job)
    for wrapped in (launch, ("sh", "-c", '"$@"; true', "sh", *launch)):
        command = ("sh", str(starter), *wrapped)
        done = subprocess.run(
            command, env=launcher.environment, capture_output=True, text=True, check=True
        )
        assert (sorted(done.stdout.split()[0::2]), done.stderr) == (["0", "1", "2", "3"], "")
        assert len(set(done.stdout.split()[1::2])) == 4


def test_ranks_that_wait(launcher: Launcher) -> None:
    """When one rank of a step gets its GPUs, those that wait behind others start at once."""
    waiting = ("--wait", *DGX)
    with ExitStack() as stack:
        first = Held(launcher, *DGX, "-n", "8")
        jobs = []
        script = ("--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; read line")

        def start(environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
            """Start a launch that waits; it is in the queue when this returns."""
            with inside(launcher, environment):
                job = launcher.start(*waiting, *options, *script, stdin=subprocess.PIPE)
            stack.enter_context(job)
            assert job.stderr.readline().startswith("gpulaunch: info: waiting as number")
            return job

        jobs.append(start(slurm(0, 2, "0,1"), "-n", "1"))
        other = start({}, "--only", "0,1")
        jobs.append(start(slurm(1, 2, "0,1"), "-n", "1"))
        first.end()
        assert [job.stdout.readline() for job in jobs] == ["0,1\n", "1,0\n"]
        for job in jobs:
            job.communicate("\n")
        assert other.stdout.readline() in ("0\n", "1\n")
        other.communicate("\n")


def test_ranks_of_two_nodes_in_one_table(launcher: Launcher) -> None:
    """A step's ranks on another node, in the same table, take nothing from those on this one.

    Neither where the engine says which rank has which GPU, nor where the ranks divide them. A rank
    of another step, or on a node without a name, may be on this very node, and does.
    """

    def rank(node: int, number: int, gpus: str, **more: str) -> dict[str, str]:
        place = {"SLURM_STEP_TASKS_PER_NODE": "2,2", "SLURM_NODEID": str(node)}
        return slurm(number, 2, gpus) | place | {"SLURMD_NODENAME": f"n{node}"} | more

    places = [(node, number) for node in (0, 1) for number in (0, 1)]
    bound = [rank(*one, str(one[1]), SLURM_GPUS_ON_NODE="8") for one in places]
    divided = [rank(*one, "2,3", SLURM_STEP_ID="1") for one in places]
    with ExitStack() as stack:
        assert held_ranks(stack, launcher, bound) == ["0", "1"] * 2
        assert held_ranks(stack, launcher, divided, "-n", "1") == ["2,3", "3,2"] * 2
        for stranger in (
            rank(2, 0, "0", SLURMD_NODENAME="", SLURM_GPUS_ON_NODE="8"),
            rank(2, 0, "0", SLURM_STEP_ID="2"),
        ):
            with inside(launcher, stranger):
                assert launcher.run(*DGX, *SHOW).returncode == 75


def test_launch_inside_a_rank(launcher: Launcher) -> None:
    """A launch inside a rank's job is an ordinary nested one: one GPU, of the rank's own."""
    inner = f"gpulaunch {' '.join(DGX)} -- sh -c 'echo $CUDA_VISIBLE_DEVICES'"
    with inside(launcher, slurm(1, 2, "0,1,2,3")):
        run = launcher.run(*DGX, "--", "sh", "-c", f"echo $CUDA_VISIBLE_DEVICES; {inner}")
    outer, nested = run.stdout.splitlines()
    assert (outer, nested, run.stderr) == ("2,3,0,1", "2", "")


def test_jobs_of_a_batch(launcher: Launcher, tmp_path: Path) -> None:
    """The jobs of a batch inside an engine divide its grant among themselves, one GPU each."""
    job = """[[job]]\ncommand = ["sh", "-c", 'echo $CUDA_VISIBLE_DEVICES']\n"""
    (tmp_path / "jobs.toml").write_text(job * 2)
    with inside(launcher, slurm(gpus="4,5")):
        run = launcher.run("batch", *DGX, "jobs.toml", "-q", cwd=tmp_path)
    assert (run.returncode, set(run.stdout.split()) <= {"4", "5"}) == (0, True)


@cases(CASES["launches"], "variables", "words", "gpus", "said")
def test_launch(
    launcher: Launcher, tmp_path: Path, variables: dict[str, str], words: str, gpus: str, said: str
) -> None:
    """What options, settings and a profile make of a grant; without GPUs a row is refused."""
    (tmp_path / "three.toml").write_text('name = "three"\ngpus = 3\n')
    with inside(launcher, slurm(**variables)):
        run = launcher.run(*DGX, *words.split(), *SHOW, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0 if gpus else 2, said and f"gpulaunch: {said}\n")
    assert sorted(run.stdout.strip().split(",")) == gpus.split(",")


def test_ignore_engine(launcher: Launcher) -> None:
    """The lease of a launch that goes past the engine names no job."""
    with inside(launcher, slurm()), held(launcher, *DGX, "-o", "ignore_engine=true"):
        assert [lease["engine_job"] for lease in leases(launcher)] == [None]


def test_two_settings_of_a_rank_map(launcher: Launcher, tmp_path: Path) -> None:
    """A map of ranks needs a rank, and one GPU for each; what is wrong is said in one line."""
    path = tmp_path / "map"
    rows = [{"rank": rank, "node": "n1", "gpu": rank} for rank in range(2)]
    path.write_text(json.dumps({"ranks": rows}))
    mapped = (*DGX, "-o", f"rank_map={path}")

    def check(environment: dict[str, str], options: list[str], message: str) -> None:
        with inside(launcher, environment):
            run = launcher.run(*mapped, *options, "--", "true")
        want = complaint(message.format(path=path, option=f"-o rank_map={path}"))
        assert (run.returncode, run.stderr) == (2, want)

    for place, options, message in CASES["wrong_settings"]:
        check(slurm(*place) if place else {}, options, message)
    batch = {name: text for name, text in slurm(gpus="0").items() if "STEP" not in name}
    check(batch, [], "{option}: slurm 7 tells this process no rank")
    two = slurm(0, 2, "0,1")
    for text, message in (*CASES["wrong_maps"], ("[" * 99999, CASES["wrong_maps"][0][1])):
        path.write_text(text)
        check(two, [], f"{{path}}: {message}")
    path.write_text(json.dumps({"ranks": rows}))
    with inside(launcher, {**two, "GPULAUNCH_RANK_MAP": str(path)}):
        assert launcher.run(*DGX, *SHOW).stdout == "0,1\n"


def test_device_cgroup(launcher: Launcher, dgx1_v100) -> None:
    """Where a device cgroup hides GPUs, CUDA_VISIBLE_DEVICES counts the others, by their UUIDs."""
    for hidden in (0, 2, 3, 4, 5, 6):
        dgx1_v100.answer("nvmlDeviceGetHandleByIndex_v2", NO_PERMISSION, gpu=hidden)
    for environment in (slurm(gpus="0,1", SLURM_STEP_GPUS="1,7"), {"CUDA_VISIBLE_DEVICES": "0,1"}):
        with inside(launcher, environment):
            run = launcher.run("-n", "all", *SHOW)
        assert (run.returncode, run.stderr) == (0, "")
        assert sorted(run.stdout.strip().split(",")) == ["GPU-v100-1", "GPU-v100-7"]
    assert os.listdir(launcher.environment["XDG_RUNTIME_DIR"]) != []  # what was read is remembered
    with inside(launcher, {"CUDA_VISIBLE_DEVICES": "1"}):
        assert launcher.run(*SHOW).stdout == "GPU-v100-7\n"


def test_views_of_two_cgroups(launcher: Launcher, dgx1_v100) -> None:
    """Two jobs that see other GPUs of one machine share its table, and each has its own GPU."""
    function = "nvmlDeviceGetHandleByIndex_v2"
    for hidden in range(1, 8):
        dgx1_v100.answer(function, NO_PERMISSION, gpu=hidden)
    with inside(launcher, slurm(gpus="0", SLURM_JOB_ID="1")), held(launcher, "--uuid") as first:
        dgx1_v100.drop(f"error {function}")
        for hidden in (0, *range(2, 8)):
            dgx1_v100.answer(function, NO_PERMISSION, gpu=hidden)
        launcher.environment["SLURM_JOB_ID"] = "2"
        with held(launcher, "--uuid") as second:
            dgx1_v100.drop(f"error {function}")
            assert (first.gpus, second.gpus) == ("GPU-v100-0", "GPU-v100-1")
            status = json.loads(launcher.run("status", "--json").stdout)
    assert [gpu["state"] for gpu in status["gpus"]][:3] == ["leased", "leased", "free"]
    until(lambda: launcher.records() == [])
    assert os.listdir(launcher.state) == []
