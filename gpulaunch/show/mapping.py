"""The load of links under a mapping as a JSON document."""

from gpulaunch.cluster.judge import Judgement, LinkLoad
from gpulaunch.show import Document


def mapping_document(default: Judgement, chosen: Judgement) -> Document:
    """Return how two mappings load the links.

    Traffic has the unit of the patterns, congestion is traffic divided by GB/s.

    Args:
        default: ranks in order.
        chosen: the mapping that was made.
    """
    return {"default": _judgement_document(default), "chosen": _judgement_document(chosen)}


def _judgement_document(judgement: Judgement) -> Document:
    loads: dict[tuple[str, int], float] = {}
    first: dict[tuple[str, int], str] = {}
    for link in judgement.links:
        key = (link.tree, link.depth)
        loads[key] = loads.get(key, 0.0) + link.load
        first.setdefault(key, link.name)
    return {
        "maximum_congestion": judgement.maximum,
        "worst_link": _link_document(judgement.worst) if judgement.worst else None,
        "between_nodes": judgement.between_nodes,
        "levels": [
            {
                "tree": level.tree,
                "depth": level.depth,
                "links": level.links,
                "first_link": first[level.tree, level.depth],
                "traffic": loads[level.tree, level.depth],
                "maximum_congestion": level.maximum,
            }
            for level in judgement.levels
        ],
    }


def _link_document(link: LinkLoad) -> Document:
    return {
        "tree": link.tree,
        "name": link.name,
        "traffic": link.load,
        "gb_per_s": link.gb_per_s,
        "congestion": link.congestion,
    }
