"""Measuring: what a job uses of its GPUs, how it talks, and what links carry."""
