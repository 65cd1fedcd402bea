"""Basic services for all packages: errors, console, files, YAML with locations, subprocesses, polling, secrets."""
