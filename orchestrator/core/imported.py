"""Lazy imports of attributes, named `module:attribute`, and of whole modules.

The lazy imports are: commands (`cli/commands.py`); the parts of a runtime that `deploy status` does not need; the
Docker SDK (`runtimes/docker/sdk.py`); httpx in `images/registry.py`; and imports inside functions, each with its
reason (`noqa: PLC0415`). All others are at the top of a module.
"""

from functools import cache
from importlib import import_module
from typing import Any


@cache
def import_attribute(path: str) -> Any:  # noqa: ANN401 - of any type
    """Return the attribute at `module:attribute`. Raises ImportError, AttributeError."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


class Imported:
    """A class attribute that is imported at its first use: a constant, or a function without `self`.

    It must not replace an abstract method: `ABCMeta` would import it when the class is defined.
    """

    def __init__(self, path: str) -> None:
        """Defer the import of the attribute at `module:attribute`."""
        self.path = path

    def __get__(self, _instance: object, _owner: type) -> Any:  # noqa: ANN401 - of any type
        return import_attribute(self.path)


class ImportedModule:
    """A module that is imported at the first use of one of its attributes."""

    def __init__(self, name: str) -> None:
        """Defer the import of the module `name`."""
        self._name = name

    def __getattr__(self, attribute: str) -> Any:  # noqa: ANN401 - of any type
        return getattr(import_module(self._name), attribute)
