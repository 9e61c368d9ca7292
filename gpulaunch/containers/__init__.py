"""Containers: the engines that run them, how GPUs get in, and how long a lease is theirs."""
