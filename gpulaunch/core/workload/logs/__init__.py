"""What other tools write about a job: NCCL's log, Nsight Compute's tables."""
