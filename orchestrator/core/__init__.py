"""What every room uses: errors, secrets, the console, programs, files, paths, YAML with places, near names.

Shows nothing here: its modules are imported by name (`from orchestrator.core.files import write_whole`).
"""
