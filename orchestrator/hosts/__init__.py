"""One host: ssh, preflight checks, GPUs, ports, VRAM."""
