"""Placement: scores, policies, and the search for the best set of GPUs."""
