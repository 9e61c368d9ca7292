"""Podman behind the protocol of container engines: its flags, its answers, its processes."""

TITLE = "Podman"
"""Name of the engine in messages."""

ID_PREFIX = "podman:"
"""Start of the ids of Podman's stores, which leases carry."""
