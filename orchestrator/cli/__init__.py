"""The command line: a module for each command that `commands` lists, and what several of them use."""
