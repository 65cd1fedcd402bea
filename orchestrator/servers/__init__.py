"""Servers that run: list, status, logs, restart, rollback."""
