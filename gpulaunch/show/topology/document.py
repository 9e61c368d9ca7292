"""A topology as a document."""

from gpulaunch.machine.gpu import format_cpuset
from gpulaunch.machine.topology import Topology
from gpulaunch.records import as_dict
from gpulaunch.show import Document


def topology_document(topology: Topology) -> Document:
    """Return the document that `gpulaunch topo --json` prints."""
    return {
        "name": topology.name,
        "source": topology.source,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "memory_bytes": gpu.memory_bytes or None,
                "numa_node": gpu.numa_node,
                "node": gpu.node,
                "cpuset": format_cpuset(gpu.cpuset),
                "host_gb_per_s": gpu.host_gb_per_s or None,
                "compute_capability": gpu.compute_capability,
                "pci_address": gpu.pci_address,
                "pcie_generation": gpu.pcie_generation or None,
                "pcie_width": gpu.pcie_width or None,
                "nvlink_version": gpu.nvlink_version or None,
                "nvlinks_to_switch": gpu.nvswitch_links,
                "nvlinks_to_cpu": gpu.cpu_nvlinks,
                "mig": as_dict(gpu.mig) if gpu.mig else None,
            }
            for gpu in topology.gpus
        ],
        "links": [
            {
                "a": link.a,
                "b": link.b,
                "path": link.path,
                "nvlink_count": link.nvlink_count,
                "bandwidth_gb_per_s": link.bandwidth_gb_per_s,
                "kind": link.kind,
                "nvlink_planned_gb_per_s": link.nvlink_planned_gb_per_s or None,
                "pcie_path": link.pcie_path,
                "pcie_bandwidth_gb_per_s": link.pcie_gb_per_s,
                "peer_to_peer": link.peer_to_peer,
            }
            for link in topology.links
        ],
    }
