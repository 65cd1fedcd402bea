"""The plan of a server, and the rules that a profile must meet. Pure."""
