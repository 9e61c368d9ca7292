"""Profiles: what is known of a job before it runs, and its communication pattern."""
