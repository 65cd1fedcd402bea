"""The program that validates command lines with an engine's Python; apart, because `status` reads its results."""

from orchestrator.core.paths import data_root


def argument_checker() -> str:
    """Return the text of the program."""
    return (data_root() / "images" / "check_server_args.py").read_text(encoding="utf-8")
