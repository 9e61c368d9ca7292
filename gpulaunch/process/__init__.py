"""Processes: the job, signals, endings, companions, and what identifies a process."""
