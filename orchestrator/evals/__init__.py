"""Evaluation suites and their statistics."""
