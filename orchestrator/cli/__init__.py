"""The command line, one module a group of commands. Its face is `main`, the console script."""
