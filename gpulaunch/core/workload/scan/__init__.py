"""The communication graph of a job from its source code: calls, the pattern and the sensitivity that they suggest."""
