"""Sweeps and reproductions of published measurements."""
