"""Profiles: the facts about a job before it runs, and its communication pattern."""
