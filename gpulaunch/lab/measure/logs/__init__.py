"""Logs of other tools: NCCL's, and what DCGM has sampled."""
