"""A target of smoke tests, and a server that matches it."""

from engine_api import EngineApi

from orchestrator.verify.target import Target

NAME = "glm-5.2"
CONTEXT = 4096
PAGE = 64
TARGET = Target(
    url="http://127.0.0.1:30000",
    served_name=NAME,
    context_length=CONTEXT,
    dp=1,
    speculative=False,
    prefix_cache=True,
    cache_report=True,
    metrics=True,
    grammar=True,
    api_key=None,
)


def engine(**behaviors: object) -> EngineApi:
    """Return a server that matches `TARGET`, except for these behaviors."""
    return EngineApi(**{"model": NAME, "context": CONTEXT, "page": PAGE, **behaviors})  # type: ignore[arg-type]
