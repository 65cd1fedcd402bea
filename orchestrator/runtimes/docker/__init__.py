"""Servers in Docker containers."""
