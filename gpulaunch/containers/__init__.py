"""Containers: the engines that run them, their ways to GPUs, and their hold on leases."""

DOCKER_VARIABLE = "DOCKER_HOST"
"""Environment variable with the address of docker's engine."""

DOCKER_SOCKET = "/var/run/docker.sock"
"""Socket of the host's docker."""

ROOTLESS_DOCKER_SOCKET = "/run/user/{user_id}/docker.sock"
"""Socket of a user's own docker."""
