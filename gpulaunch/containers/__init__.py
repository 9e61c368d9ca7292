"""Containers: the engines that run them, their ways to GPUs, and their hold on leases."""
