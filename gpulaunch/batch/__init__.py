"""Batches: a file of jobs, each run by an ordinary launch."""
