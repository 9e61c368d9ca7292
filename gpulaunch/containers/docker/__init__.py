"""Docker behind the protocol of container engines: its flags, its sockets, its API."""

TITLE = "Docker Engine"
"""What messages call it."""

ADDRESS_VARIABLE = "DOCKER_HOST"
"""Environment variable that tells docker where its engine answers."""
