"""Launching through Docker: its command line, how GPUs get in, when a container holds them."""
