"""Deploy sglang servers and verify what was deployed."""

__version__ = "0.1.0"
