"""A program that tells where its rank runs, and what a map of ranks wants."""

import json
from pathlib import Path

Row = tuple[int, str, list[int], int]
"""Rank, node, cores and first GPU."""

# A rank of mpirun inside a job of Slurm would have the variables of both.
_RANK = """\
import json, os, time
os.environ["HOST"] = os.uname().nodename
names = ["SLURM_PROCID", "SLURMD_NODENAME"]
if "OMPI_COMM_WORLD_RANK" in os.environ:
    names = ["OMPI_COMM_WORLD_RANK", "HOST"]
    time.sleep(0.3)  # Open MPI 5.0 may hang if ranks end while it starts
seen = [os.environ.get(name, "-1") for name in (*names, "CUDA_VISIBLE_DEVICES")]
os.write(1, (json.dumps([*seen, sorted(os.sched_getaffinity(0))]) + "\\n").encode())
"""


def rank_command(directory: Path) -> list[str]:
    """Return the command of a rank that tells what it sees."""
    program = directory / "rank.py"
    program.write_text(_RANK)
    return ["/usr/bin/python3", str(program)]


def ranks_of(output: str) -> list[Row]:
    """Return what the ranks have told, in their order."""
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
    return sorted(
        (int(rank), node, cores, int(gpus.split(",")[0])) for rank, node, gpus, cores in rows
    )


def wanted(directory: Path) -> list[Row]:
    """Return what the map in a directory says."""
    rows = json.loads((directory / "map.json").read_text())["ranks"]
    return [(row["rank"], row["node"], [row["core"]], row["gpu"]) for row in rows]


def crossed_matrix(directory: Path) -> str:
    """Return the file of a matrix whose heavy pairs are ranks 0 and 2, and 1 and 3."""
    path = directory / "crossed.csv"
    path.write_text("0,1,9,0\n1,0,0,9\n9,0,0,1\n0,9,1,0\n")
    return str(path)


def write_cluster(directory: Path, nodes: str, cores: list[str]) -> str:
    """Write the file of a cluster of nodes with eight GPUs at one switch; return its path."""
    path = directory / "cluster.toml"
    path.write_text(f"""\
name = "small"
source = "made up"
nodes = [{{ names = "{nodes}", machine = "dgx1-v100", cores = {cores}, gb_per_s = 4.0 }}]

[network]
source = "made up"
switches = [{{ name = "top", nodes = "{nodes}" }}]
""")
    return str(path)
