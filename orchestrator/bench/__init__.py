"""Benchmarks: load generation, metrics, statistics, published results, cost."""
