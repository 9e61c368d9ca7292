"""Launches inside a real Slurm of two nodes with eight stand-in GPUs each."""

from slurm import Slurm


def test_two_nodes(slurm: Slurm) -> None:
    """Slurm runs a task on each of its nodes, and gives each its GPUs."""
    done = slurm.run(
        "srun", "-N2", "--gres=gpu:2", "sh", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    )
    assert (sorted(done.stdout.splitlines()), done.returncode) == (["n1 0,1", "n2 0,1"], 0)
