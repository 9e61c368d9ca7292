"""Sharing a GPU through CUDA MPS: who may share with whom, and how much each gets."""
