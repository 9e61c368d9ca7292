"""`gpulaunch cluster run`: run a command's ranks where a mapping puts them, in an allocation."""

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from shutil import rmtree

from gpulaunch.cli.arguments import Parser, add_topology
from gpulaunch.cluster.allocation import (
    Allocation,
    ask_nodes,
    environment_of,
    find_allocation,
    host_names,
)
from gpulaunch.cluster.cluster import Cluster
from gpulaunch.errors import UsageError
from gpulaunch.files.write import write_text
from gpulaunch.launch.children import own_command
from gpulaunch.process.execute import execute

_KEPT_S = 7 * 86400.0  # ranks read their map as they start


def add_allocation(parser: Parser) -> None:
    """Add the options that say which allocation is meant."""
    parser.add_argument(
        "--hostfile", metavar="FILE", help="hosts for Open MPI, outside an allocation of Slurm"
    )
    parser.add_argument(
        "--launcher",
        metavar="COMMAND",
        help="srun or mpirun with options for it, such as 'srun --mpi=pmix'",
    )
    add_topology(parser)
