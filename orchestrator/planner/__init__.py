"""From a profile's name to a plan."""
