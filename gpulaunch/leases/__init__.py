"""Leases and tickets, and the host-wide allocation table that keeps them."""
