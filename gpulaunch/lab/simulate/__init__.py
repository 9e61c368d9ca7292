"""Simulation: replaying jobs on described machines by the launcher's own decisions and queue."""
