"""Deciding: a request meets the topology and the leases; out comes Grant, Wait or Refuse."""
