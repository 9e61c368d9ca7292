"""Draw a machine's NVLinks with networkx and Matplotlib: draw_machine.py dgx1-v100 dgx1.png.

The first argument is a machine's name or file, as for `gpulaunch topo --topology`.
"""

import sys

import networkx as nx
from matplotlib.figure import Figure

import gpulaunch

machine, picture = sys.argv[1:]
graph = gpulaunch.Simulator(machine).topology.to_networkx()
nvlinks = {}
for a, b, link in graph.edges.data():
    if link.get("nvlink_count"):
        nvlinks[a, b] = f"{link['nvlink_count']} x NVLink, {link['bandwidth_gb_per_s']:g} GB/s"
sockets = {gpu: graph.nodes[gpu].get("numa_node", 0) for gpu in graph}
places = nx.circular_layout(sorted(graph, key=sockets.__getitem__))

figure = Figure(figsize=(9, 9))
axes = figure.subplots()
axes.set_title(graph.graph["name"])
nx.draw_networkx_nodes(graph, places, node_color=list(sockets.values()), cmap="Pastel1", ax=axes)
nx.draw_networkx_labels(graph, places, ax=axes)
nx.draw_networkx_edges(graph, places, list(nvlinks), edge_color="green", ax=axes)
nx.draw_networkx_edge_labels(graph, places, nvlinks, font_size=6, label_pos=0.3, ax=axes)
figure.savefig(picture)
print(f"{picture}: {len(graph)} GPUs, {len(nvlinks)} pairs with NVLinks")
