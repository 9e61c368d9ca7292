"""A cache of this machine's topology, kept in memory (tmpfs) until the machine may differ.

The file belongs to this user alone, so that no other user can forge the machine. It is used if it
was written in this boot for the GPUs that the driver lists now, and is younger than MAX_AGE_S: an
NVLink that has gone down since is noticed then.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from gpulaunch.files import own_cache, slow_lock
from gpulaunch.machine.gpu import Gpu, Mig
from gpulaunch.machine.link import Link
from gpulaunch.machine.topology import Topology, to_rows, topology_of_rows
from gpulaunch.process.system import boot_id
from gpulaunch.records import field_names
from gpulaunch.typing import Any

MAX_AGE_S = 900.0
LOCK_TIMEOUT_S = 10.0
_NAME = "gpulaunch.topology.json"


def load(driver: str, fingerprint: str) -> Topology | None:
    """Return the topology cached under the driver's fingerprint; None if none may be used."""
    try:
        document = own_cache.load(_NAME, MAX_AGE_S)
        return (
            topology_of_rows(document["topology"])
            if document["key"] == _cache_key(driver, fingerprint)
            else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def store(fingerprint: str, topology: Topology) -> None:
    """Store a topology; if that fails, the machine is read again the next time."""
    key = _cache_key(topology.driver, fingerprint)
    own_cache.store(_NAME, {"key": key, "topology": to_rows(topology)})


def forget() -> None:
    """Delete the cache, so that the machine is read again the next time."""
    with suppress(OSError):
        os.unlink(own_cache.path_of(_NAME))


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one launcher read the machine while the others wait for its result.

    They wait for LOCK_TIMEOUT_S at most, and not at all where no lock can be made.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(slow_lock.held(f"{own_cache.path_of(_NAME)}.lock", LOCK_TIMEOUT_S))
        yield


def _cache_key(driver: str, fingerprint: str) -> list[Any]:
    """Return everything that the topology depends on.

    This process's CPUs are part of it, since NVML reports only those.
    """
    here = [boot_id(), os.uname().nodename, sorted(os.sched_getaffinity(0))]
    form = [*field_names(Gpu), *field_names(Link), *field_names(Mig)]
    return [form, here, driver, fingerprint]
