"""Which GPUs: scores and policies."""
