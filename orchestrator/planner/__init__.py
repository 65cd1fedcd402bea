"""Planning: from the name of a profile to a plan."""
