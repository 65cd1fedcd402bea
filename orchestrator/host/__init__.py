"""The machine a server runs on: its GPUs, devices, limits, CPUs, disks and ports."""
