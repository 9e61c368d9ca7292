"""The load of links under a mapping as a document, and a mapping as tables for a terminal."""

from gpulaunch.cli.screen import Grid, Text, cut, figure, make_table
from gpulaunch.cli.screen import Parts as Group
from gpulaunch.cluster.mapping import Judgement, LinkLoad
from gpulaunch.errors import counted
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
    levels: dict[tuple[str, int], list[LinkLoad]] = {}
    for link in judgement.links:
        levels.setdefault((link.tree, link.depth), []).append(link)
    order = ("network", "CPU", "GPU")
    return {
        "maximum_congestion": judgement.maximum,
        "worst_link": _link_document(judgement.worst) if judgement.worst else None,
        "between_nodes": judgement.between_nodes,
        "levels": [
            {
                "tree": tree,
                "depth": depth,
                "links": len(links),
                "first_link": links[0].name,
                "traffic": sum(link.load for link in links),
                "maximum_congestion": max(link.congestion for link in links),
            }
            for (tree, depth), links in sorted(
                levels.items(), key=lambda level: (order.index(level[0][0]), level[0][1])
            )
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


def mapping_table(document: Document) -> Group:
    """Return the table of ranks, and of the links' loads if the document has them.

    Args:
        document: the document of `gpulaunch cluster map --json`.
    """
    ranks = document["ranks"]
    nodes = len({rank["node"] for rank in ranks})
    where = f"{counted(nodes, 'node')} of {document['cluster']}"
    title = f"{counted(len(ranks), 'rank')} on {where}, by {document['policy']}"
    patterns = f"CPUs: {document['cpu_pattern']}, GPUs: {document['gpu_pattern']}"
    table = make_table("rank", "GPU", "core", "node", right=("rank", "GPU", "core"))
    for rank in ranks:
        table.add_row(str(rank["rank"]), str(rank["gpu"]), str(rank["core"]), cut(rank["node"]))
    parts: list[Text | Grid] = [Text(title, "bold"), Text(patterns, "dim"), Text(), table]
    if "explain" in document:
        parts += [Text(), *_explanation(document["explain"], document["policy"])]
    return Group(*parts)


def _explanation(explain: Document, policy: str) -> list[Text | Grid]:
    default, chosen = explain["default"], explain["chosen"]
    table = make_table("congestion", "traffic", "links", right=("congestion", "traffic"))
    for before, after in zip(default["levels"], chosen["levels"], strict=True):
        more = " and the like" if after["links"] > 1 else ""
        table.add_row(
            _change(before["maximum_congestion"], after["maximum_congestion"]),
            _change(before["traffic"], after["traffic"]),
            cut(f"{after['links']} {after['tree']}: {after['first_link']}{more}"),
        )
    return [
        Text(f"ranks in order -> {policy}: the largest congestion of a link, all traffic", "bold"),
        table,
        Text(),
        Text(f"between nodes: {_change(default['between_nodes'], chosen['between_nodes'])}"),
        *(
            Text(f"worst link, {name}: {_worst(judged['worst_link'])}")
            for name, judged in (("ranks in order", default), (policy, chosen))
        ),
        Text("congestion is traffic, in the patterns' unit, divided by GB/s", "dim"),
    ]


def _change(before: float, after: float) -> str:
    one, other = (f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in (before, after))
    return one if one == other else f"{one}->{other}"


def _worst(link: Document | None) -> str:
    if link is None or not link["traffic"]:
        return "none carries anything"
    return (
        f"{link['name']} ({link['tree']}), {figure(link['traffic'])} over "
        f"{figure(link['gb_per_s'])} GB/s = {figure(link['congestion'])}"
    )
