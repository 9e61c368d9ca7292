"""Sharing a GPU through CUDA MPS: who may share with whom, how much each gets, and the daemons."""

OBJECTIVES = ("throughput", "energy", "product")
"""What jobs may share a GPU for (mps-sharing-2024 IV.B and IV.C)."""
