"""The machine: GPUs, links, topology, described machines, and how this machine is read."""
