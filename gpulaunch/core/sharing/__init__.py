"""Sharing a GPU through CUDA MPS: who may share with whom, and how much each gets."""

OBJECTIVES = ("throughput", "energy", "product")
"""What jobs may share a GPU for (mps-sharing-2024 IV.B and IV.C)."""
