"""What every room uses. Its face is its modules, each imported by name (`from orchestrator.core.files import …`).

- what is said: `asked`, `console`, `errors`, `nearest`, `streams`, `text`
- what is not: `secret`, `known_secrets`, `redaction`
- files: `safe_paths` (values from outside), `paths`, `files`, `document` (YAML with its lines), `validation`,
  `catalogue`, `origin`
- logs: `log_files`, `log_lines`
- programs: `shell`, `procfs`, `signals`, `waiting`
- requests: `http` (over httpx), `lookups` (names of hosts)
"""
