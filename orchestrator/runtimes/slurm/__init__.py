"""Servers as jobs of a Slurm cluster, on nodes that share this machine's home directory."""
