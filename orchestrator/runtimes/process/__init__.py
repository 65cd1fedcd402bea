"""Servers as processes of this machine."""
