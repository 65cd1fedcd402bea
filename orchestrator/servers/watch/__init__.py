"""`deploy watch`: restarts servers that die or hang."""
