"""Running servers: list, status, logs, restart, rollback."""
