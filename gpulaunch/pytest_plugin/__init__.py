"""The pytest plugin: leases of GPUs for tests; docs/guides/pytest.md shows its use."""
