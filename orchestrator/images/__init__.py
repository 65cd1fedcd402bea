"""Patched images: built, inspected, pushed; and the patches that other sources need."""
