"""Podman behind the protocol of container engines: its flags, its answers, its processes."""
