"""Docker behind the protocol of container engines: its flags, its sockets, its API."""

ADDRESS_VARIABLE = "DOCKER_HOST"
"""Environment variable with the address of docker's engine."""

DEFAULT_SOCKET = "/var/run/docker.sock"
"""Socket of the host's engine."""

ROOTLESS_SOCKET = "/run/user/{user_id}/docker.sock"
"""Socket of a user's own engine."""
