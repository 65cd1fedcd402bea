"""Comparison of sglang's versions."""


def is_since(version: str, first: str) -> bool:
    """Return whether a version is `first` or newer."""
    from packaging.version import Version  # noqa: PLC0415 - 45 ms to import, and listing servers compares none

    return Version(version) >= Version(first)
