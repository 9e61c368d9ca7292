"""Slurm's srun as the starter of ranks, inside an allocation of salloc or sbatch."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.cluster.starter import Start
from gpulaunch.records import Record

_OPPOSED = (
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_TASKS_PER_NODE",
    "SLURM_DISTRIBUTION",
    "SLURM_CPU_BIND",
    "SLURM_GPU_BIND",
)
"""Wishes of the allocation for its steps, which the hosts of the ranks replace."""


class Srun(Record):
    """srun inside an allocation.

    Attributes:
        program: the program with the user's options for it.
        nodes: number of nodes of the allocation.
    """

    program: tuple[str, ...]
    nodes: int

    def on_each_node(self, argv: Sequence[str], directory: str) -> Start:  # noqa: ARG002  no files
        """Return a step of one task for each node, which leaves all CPUs to each task."""
        options = (
            f"--nodes={self.nodes}",
            f"--ntasks={self.nodes}",
            "--ntasks-per-node=1",
            "--cpu-bind=none",
            "--overlap",
        )
        return Start((*self.program, *options, *argv), without=_OPPOSED)

    def on_ranks(self, argv: Sequence[str], hosts: Sequence[str], directory: str) -> Start:
        """Return a step whose tasks run where a file of hosts says, one line for each task.

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
        return Start(
            (*self.program, *options, *argv),
            {"SLURM_HOSTFILE": path},
            _OPPOSED,
            {path: "".join(f"{host}\n" for host in hosts)},
        )
