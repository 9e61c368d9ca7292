"""The report about replays: one page with its pictures."""
