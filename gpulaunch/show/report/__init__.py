"""Replays -> one page to look at, with its pictures."""
