"""Commands of `deploy add`."""
