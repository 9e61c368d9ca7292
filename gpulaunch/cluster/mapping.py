"""The mapping of a job's ranks to nodes, cores and GPUs."""
# pure: decides on plain values

from gpulaunch.cluster.cluster import Cluster
from gpulaunch.cluster.rank_traffic import RankTraffic
from gpulaunch.records import Record


class Place(Record):
    """Where one rank runs.

    Attributes:
        node: number of the node in the cluster.
        core: id of its core there.
        gpu: index of its GPU there.
    """

    node: int
    core: int
    gpu: int


class MappingProblem(Record):
    """What a mapping is made for.

    Attributes:
        cluster: where the ranks will run.
        cpu: what their processes send each other.
        gpu: what their GPUs send each other; as many ranks.
        seed: seed of all random choices.
    """

    cluster: Cluster
    cpu: RankTraffic
    gpu: RankTraffic
    seed: int = 0


RankMapping = tuple[Place, ...]
"""The place of each rank, by rank."""
