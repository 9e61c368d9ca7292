"""Containers: docker's command line, engines, how GPUs get in, and the life of a container."""
