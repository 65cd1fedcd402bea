"""The Docker SDK and its HTTP client, imported on first use.

They take 0.1 s to import. Only methods that call the daemon use them, and most commands call none.
"""

from typing import TYPE_CHECKING

from orchestrator.core.imported import ImportedModule

if TYPE_CHECKING:
    import docker
    import docker.errors
    import docker.types
    import requests
    import urllib3
else:
    docker, requests, urllib3 = map(ImportedModule, ("docker", "requests", "urllib3"))

__all__ = ["docker", "requests", "urllib3"]
