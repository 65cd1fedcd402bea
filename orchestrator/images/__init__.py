"""Patched images: built, inspected, pushed."""
