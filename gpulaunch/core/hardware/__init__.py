"""The machine: GPUs, links and what the links carry."""
