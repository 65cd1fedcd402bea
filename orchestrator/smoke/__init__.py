"""Checks that would go red if a feature were silently absent."""
