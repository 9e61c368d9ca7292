"""Effects: one door each to NVML, the allocation table, processes and data files."""
