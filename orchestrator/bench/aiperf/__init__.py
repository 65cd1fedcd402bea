"""aiperf (NVIDIA) as the client that sends the load: its configuration, a run of it, and its result."""
