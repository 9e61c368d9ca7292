"""Replaying jobs on described machines, by the launcher's own decide() and queue."""
