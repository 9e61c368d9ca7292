"""What `gpulaunch profile` does with a job: launches of it, each an ordinary one that is recorded."""
