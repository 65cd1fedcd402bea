"""Ways to run a server."""
