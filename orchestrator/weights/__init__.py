"""Checkpoints: fetched so that a cut costs nothing, and whole before a server sees them."""
