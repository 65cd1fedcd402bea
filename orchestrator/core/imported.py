"""Lazy imports: attributes named as `module:attribute`, and whole modules.

All other imports are at the top of a module. Lazy are: commands (`cli/commands.py`); the parts of a runtime that
`deploy status` does not need; the Docker SDK (`runtimes/docker/sdk.py`); httpx in `images/registry.py`; and imports
inside functions, each with its reason (`noqa: PLC0415`).
"""

from functools import cache
from importlib import import_module
from typing import Any


@cache
def import_attribute(path: str) -> Any:  # noqa: ANN401 - of any type
    """Return the attribute of a module, `module:attribute`. Raises ImportError, AttributeError."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


class Imported:
    """An attribute of a class that is imported when it is first used: a constant, or a function without `self`.

    It must not replace an abstract method: `ABCMeta` would import it with the class.
    """

    def __init__(self, path: str) -> None:
        """Defer the import of the attribute of a module, `module:attribute`."""
        self.path = path

    def __get__(self, _instance: object, _owner: type) -> Any:  # noqa: ANN401 - of any type
        return import_attribute(self.path)


class ImportedModule:
    """A module that is imported when one of its attributes is first used."""

    def __init__(self, name: str) -> None:
        """Defer the import of the module `name`."""
        self._name = name

    def __getattr__(self, attribute: str) -> Any:  # noqa: ANN401 - of any type
        return getattr(import_module(self._name), attribute)
