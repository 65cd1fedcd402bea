"""Commands of `deploy cache`."""
