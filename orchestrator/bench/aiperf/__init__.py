"""aiperf (NVIDIA) as the load client: its configuration, its run, and its result."""
