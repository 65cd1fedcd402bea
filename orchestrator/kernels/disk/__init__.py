"""Kernel tables on disk and in images, and the tuners."""
