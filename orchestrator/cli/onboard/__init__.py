"""Commands of `deploy onboard`."""
