"""Files with the tables of a machine: figures of all sets of GPUs, so that launches decide sooner.

A shipped machine's come with the wheel, and `gpulaunch topo` makes this machine's, once per boot. A
launch never makes any.
"""

from collections.abc import Callable
from contextlib import suppress

from gpulaunch.decide.placement.fabric import MAPPED_GPUS, fabric_of
from gpulaunch.files.document import MAX_FILE_BYTES, SHIPPED
from gpulaunch.machine.find import Machine
from gpulaunch.machine.table_key import TableKey
from gpulaunch.machine.topology import Topology

_CACHE = "gpulaunch.tables"


def attach_tables(machine: Machine) -> None:
    """Give a machine its tables, if there is a file that has them."""
    with suppress(OSError, ValueError):
        content = _read_file(machine.key)
        from gpulaunch.decide.placement.tables import read_tables  # late: often there is no file

        read_tables(fabric_of(machine.topology), content)


def _read_file(key: TableKey | None) -> bytes:
    """Return the content of the file that may have a machine's tables.

    Raises:
        OSError: there is none.
        ValueError: another user may write to it.
    """
    if key is None:
        from gpulaunch.files import own_cache  # late: described machines do without

        return own_cache.load_bytes(_CACHE)
    if SHIPPED not in key.file:
        raise FileNotFoundError(key.file)
    with open(key.file.removesuffix(".toml") + ".tables", "rb") as file:
        return file.read(MAX_FILE_BYTES)


def make_tables(topology: Topology, tell: Callable[[str], None]) -> None:
    """Make the tables of this machine and keep them for its launches, unless they are there.

    Args:
        topology: this machine.
        tell: called with a line beforehand where it takes long.
    """
    attach_tables(Machine(topology, (), None))
    fabric = fabric_of(topology)
    if not fabric.has_tables or "cut" in fabric.tables:
        return
    from gpulaunch.decide.placement.tables import tabulate, to_bytes  # late: as above
    from gpulaunch.files import own_cache

    if len(fabric.gpus) > MAPPED_GPUS:
        sets = f"{1 << len(fabric.gpus):,} sets of GPUs"
        tell(f"making tables of {sets}, once per boot, which may take a minute")
    tabulate(fabric)
    own_cache.store_bytes(_CACHE, to_bytes(fabric))
