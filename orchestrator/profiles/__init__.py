"""Profiles as a person writes them: schema, layers, JSON Schema, writing YAML."""
