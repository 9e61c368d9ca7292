"""The communication graph of a job, read from its source code."""
