"""Traces of recorded sessions: one type of request, and a reader for each format."""
