"""The plan of a server, and the rules that decide it. Pure."""
