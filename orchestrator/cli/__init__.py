"""The command line: one module a group of commands.

Shows nothing here: `main` imports each module by name, when one of its commands runs.
"""
