"""Deciding: pure functions over plain values."""
