"""Tuned tables on disk, inside images and upstream, and aiter's own tuner: the edges of `orchestrator.kernels`."""
