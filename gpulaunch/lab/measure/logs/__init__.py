"""Logs of other tools."""
