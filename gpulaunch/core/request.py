"""What is asked of the machine."""

from collections.abc import Iterable
from typing import NamedTuple

from gpulaunch.core.hardware.gpu import Gpu
from gpulaunch.core.hardware.naming import gpus_named
from gpulaunch.core.hardware.topology import Topology
from gpulaunch.errors import UsageError, quoted

_WIDEST_RANGE = 1024
_MAX_DIGITS = 20  # of an index or a range


class Constraint(NamedTuple):
    """The GPUs that one option admits.

    Attributes:
        text: the option as it was written, for messages.
        uuids: what it admits.
    """

    text: str
    uuids: frozenset[str]


class Request(NamedTuple):
    """One job's wishes, complete: every default has been filled in.

    Attributes:
        gpus: how many, at least 1; None for every GPU that the constraints admit.
        pattern: name of the communication pattern.
        bandwidth_sensitive: whether faster links make the job faster.
        policy: name of the placement policy.
        bandwidth_model: name of the effective-bandwidth model.
        constraints: each narrows the choice of GPUs.
        profile: name of the profile, or None.
        assumed: what of the above neither the user nor a profile said.
    """

    gpus: int | None
    pattern: str
    bandwidth_sensitive: bool
    policy: str
    bandwidth_model: str
    constraints: tuple[Constraint, ...] = ()
    profile: str | None = None
    assumed: tuple[str, ...] = ()


def select(topology: Topology, names: Iterable[str], option: str) -> tuple[Gpu, ...]:
    """The GPUs that the user names by index or a range of them, "card:instance", UUID or a clear beginning of one.

    Args:
        topology: where to look.
        names: one name each.
        option: as the user wrote it, for the message.

    Raises:
        UsageError: a name fits no GPU, or several.
    """
    return tuple(gpu for name in names for single in _each_of(name.strip()) for gpu in _named(topology, single, option))


def _each_of(name: str) -> list[str]:
    """The indices of a range such as "4-6"; of anything else itself."""
    first, dash, last = name.partition("-")
    numbers = len(name) < _MAX_DIGITS and first.isdecimal() and last.isdecimal()
    if dash and numbers and int(first) <= int(last) < int(first) + _WIDEST_RANGE:
        return [str(index) for index in range(int(first), int(last) + 1)]
    return [name]


def _named(topology: Topology, name: str, option: str) -> list[Gpu]:
    """The GPU of this name, or all instances of the card of this name if that is in MIG mode."""
    name = str(int(name)) if name.isdecimal() and len(name) < _MAX_DIGITS else name
    of_card = [gpu for gpu in topology.gpus if gpu.mig and name in (str(gpu.mig.card), gpu.mig.card_uuid)]
    if of_card:
        return of_card
    found = [gpu for gpu in topology.gpus if name in (gpu.name, gpu.uuid, str(gpu.index))]
    if not found and not name.isdecimal():
        found = [gpu for gpu in topology.gpus if name and gpu.uuid.startswith(name)]
    if len(found) == 1:
        return found
    problem = f"fits {len(found)} GPUs" if found else "is no GPU"
    raise UsageError(f"{option}: {quoted(name)} {problem} of {topology.name}, which has {gpus_named(topology.gpus)}")


def only(topology: Topology, names: Iterable[str], option: str) -> Constraint:
    """Admit the named GPUs alone."""
    return Constraint(option, frozenset(gpu.uuid for gpu in select(topology, names, option)))


def exclude(topology: Topology, names: Iterable[str], option: str) -> Constraint:
    """Admit all but the named GPUs."""
    excluded = select(topology, names, option)
    return Constraint(option, frozenset(gpu.uuid for gpu in topology.gpus if gpu not in excluded))


def memory(topology: Topology, memory_bytes: int, option: str) -> Constraint:
    """Admit GPUs with at least so much memory.

    Raises:
        UsageError: nobody knows how much they have.
    """
    if not any(gpu.memory_bytes for gpu in topology.gpus):
        raise UsageError(f"{option}: how much memory the GPUs of {topology.name} have is not known")
    return Constraint(option, frozenset(gpu.uuid for gpu in topology.gpus if gpu.memory_bytes >= memory_bytes))


def model(topology: Topology, text: str, option: str) -> Constraint:
    """Admit GPUs whose product name contains the text, in upper or lower case."""
    return Constraint(option, frozenset(gpu.uuid for gpu in topology.gpus if text.casefold() in gpu.model.casefold()))


def visible(topology: Topology, value: str) -> Constraint:
    """Admit what a CUDA_VISIBLE_DEVICES that is already set leaves visible.

    CUDA reads the list up to the first entry that names no GPU, such as -1, and hides that one and the rest.
    """
    uuids = []
    for name in value.split(","):
        try:
            uuids += [gpu.uuid for gpu in _named(topology, name.strip(), "")]
        except UsageError:
            break
    return Constraint(f"CUDA_VISIBLE_DEVICES={value}", frozenset(uuids))
