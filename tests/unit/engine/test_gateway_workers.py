"""What smg says of the servers behind it."""

import pytest

from orchestrator.engine.gateway import GatewayWorker, parse_workers
from orchestrator.engine.responses import UnexpectedResponseError

# As smg 1.13.0 answers while the first is taken away, shortened.
ANSWER = {
    "workers": [
        {"id": "01a2-1", "url": "http://127.0.0.1:8", "is_healthy": False, "status": "draining", "load": 2},
        {"id": "01a2-2", "url": "http://127.0.0.1:16", "is_healthy": True, "status": "ready", "load": 0},
    ],
    "total": 2,
}


def test_cordoned_worker_is_not_ready_and_counts_requests() -> None:
    assert parse_workers(ANSWER) == (
        GatewayWorker(identity="01a2-1", url="http://127.0.0.1:8", ready=False, requests=2),
        GatewayWorker(identity="01a2-2", url="http://127.0.0.1:16", ready=True, requests=0),
    )


LOADED = {"id": "1", "url": "u", "status": "ready", "load": float("inf")}  # as `1e999` is read


@pytest.mark.parametrize(
    "answer", [{}, {"workers": None}, {"workers": [{"id": "1"}]}, {"workers": ["one"]}, {"workers": [LOADED]}]
)
def test_invalid_worker_list_is_rejected(answer: dict[str, object]) -> None:
    with pytest.raises(UnexpectedResponseError, match="does not list workers"):
        parse_workers(answer)
