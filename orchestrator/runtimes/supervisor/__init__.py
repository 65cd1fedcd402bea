"""The supervisor process of a server, for the process and Slurm runtimes."""
