"""How long a lease's GPUs have done nothing."""

import time

from gpulaunch.leases.lease import Lease
from gpulaunch.process.system import state_of

_WORTH_A_WORD_S = 60.0


def idle_since_s(lease: Lease) -> float | None:
    """Return since when the GPUs of a lease have done nothing, in seconds since 1970.

    None means that they work, did so a minute ago, or that nobody looks: its launcher has ended, is
    in another pid namespace or an older gpulaunch, or the machine is a described one.
    """
    if not lease.watches_use or time.time() - lease.busy_s < _WORTH_A_WORD_S:
        return None
    return lease.busy_s if state_of(lease.launcher) else None
