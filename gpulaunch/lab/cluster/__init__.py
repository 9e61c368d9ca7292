"""Past one machine: clusters, their networks, and the mapping of ranks to nodes, cores and GPUs."""
