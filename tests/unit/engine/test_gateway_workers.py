"""Test the parsing of smg's worker list."""

import pytest

from orchestrator.engine.gateway import GatewayWorker, parse_workers
from orchestrator.engine.responses import UnexpectedResponseError

# The response of smg 1.13.0 while it drains the first worker, shortened.
RESPONSE = {
    "workers": [
        {"id": "01a2-1", "url": "http://127.0.0.1:8", "is_healthy": False, "status": "draining", "load": 2},
        {"id": "01a2-2", "url": "http://127.0.0.1:16", "is_healthy": True, "status": "ready", "load": 0},
    ],
    "total": 2,
}


def test_cordoned_worker_is_not_ready_and_counts_requests() -> None:
    assert parse_workers(RESPONSE) == (
        GatewayWorker(identity="01a2-1", url="http://127.0.0.1:8", ready=False, requests=2),
        GatewayWorker(identity="01a2-2", url="http://127.0.0.1:16", ready=True, requests=0),
    )


LOADED = {"id": "1", "url": "u", "status": "ready", "load": float("inf")}  # as `1e999` is parsed


@pytest.mark.parametrize(
    "response", [{}, {"workers": None}, {"workers": [{"id": "1"}]}, {"workers": ["one"]}, {"workers": [LOADED]}]
)
def test_invalid_worker_list_is_rejected(response: dict[str, object]) -> None:
    with pytest.raises(UnexpectedResponseError, match="does not list workers"):
        parse_workers(response)
