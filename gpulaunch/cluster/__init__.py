"""Past one machine: cluster engines, and the mapping of ranks to nodes, cores and GPUs."""
