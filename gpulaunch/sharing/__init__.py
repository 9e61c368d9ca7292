"""Sharing a GPU through CUDA MPS: who may share with whom, how much each gets, and the daemons."""
