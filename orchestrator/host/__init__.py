"""The machine a server runs on: its GPUs, limits, disks, ports, and the checkpoints on it."""
