"""Logs of other tools: NCCL's, and what DCGM or Nsight Systems has sampled."""
