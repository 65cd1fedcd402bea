"""Servers as processes of this machine, for rented pods that have no Docker."""
