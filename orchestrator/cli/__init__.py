"""The command line: one module for each command in `commands`, and shared code."""
