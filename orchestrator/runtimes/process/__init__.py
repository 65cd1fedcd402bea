"""Servers as processes of this host."""
