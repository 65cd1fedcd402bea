"""Causes of failure found in a log."""
