"""A mapping of ranks as a table for a terminal."""

from gpulaunch.errors import counted
from gpulaunch.show import Document
from gpulaunch.show.terminal import Grid, Group, Text, cut, figure, make_table


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
