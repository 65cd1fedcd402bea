"""Benchmarks: load generation, metrics, statistics, published figures, cost."""
