"""Servers as Slurm jobs."""
