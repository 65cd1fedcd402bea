"""Run directories: names, locks, records."""
