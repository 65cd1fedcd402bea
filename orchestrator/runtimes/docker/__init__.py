"""Servers in Docker containers, here or on a far host."""
