"""Readiness, and the smoke test with its checks."""
