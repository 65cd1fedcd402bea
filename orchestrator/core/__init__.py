"""Errors, console, files, YAML with locations, subprocesses, polling and secrets."""
