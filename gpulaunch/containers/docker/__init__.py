"""Docker behind the protocol of container engines: its flags, its sockets, its API."""

TITLE = "Docker Engine"
"""Name of the engine in messages."""

ADDRESS_VARIABLE = "DOCKER_HOST"
"""Environment variable with the address of docker's engine."""
