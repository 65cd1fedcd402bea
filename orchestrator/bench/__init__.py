"""Measure a served model with the field's own definitions, on any endpoint that speaks the API."""
