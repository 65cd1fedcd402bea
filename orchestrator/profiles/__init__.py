"""Profiles as written by the user: schema, layers, JSON Schema, YAML output."""
