"""Files rendered from a plan. Pure."""
