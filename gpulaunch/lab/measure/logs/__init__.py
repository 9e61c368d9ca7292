"""Logs of other tools: NCCL's log, Nsight Compute's tables."""
