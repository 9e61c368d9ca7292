"""The mapping policies by name."""
# pure: decides on plain values

from collections.abc import Callable

from gpulaunch.cluster.mapping import Mapping, MappingProblem, Place


def _map_in_order(problem: MappingProblem) -> Mapping:
    """Fill nodes one after the other: the local rank is the number of core and GPU."""
    places = [
        Place(number, core, gpu.index)
        for number, node in enumerate(problem.cluster.nodes)
        for core, gpu in zip(sum(node.sockets, ()), node.topology.gpus, strict=False)
    ]
    return tuple(places[: problem.cpu.ranks])


MAPPING_POLICIES: dict[str, Callable[[MappingProblem], Mapping]] = {"default": _map_in_order}
"""Name -> function; there are at least as many slots as ranks."""

IN_ORDER = "default"
DEFAULT_MAPPING_POLICY = "default"
