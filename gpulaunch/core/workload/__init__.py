"""The job: profile and communication pattern."""
