"""Endpoints that cannot be identified: the hint depends on the reason."""

import pytest

from orchestrator.core.errors import SmokeError
from orchestrator.core.secrets import Secret
from orchestrator.engine.responses import NoResponseError, UnauthorizedError, UnexpectedResponseError
from orchestrator.servers.start.verify import unidentified_server
from orchestrator.servers.targets import side_of_url


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (NoResponseError("refused"), "lists the URLs of your own servers"),
        (UnauthorizedError("401"), "`--api-key-env VARIABLE` names the variable that holds the key"),
        (
            UnexpectedResponseError("`/server_info` returned HTTP 404"),
            "a gateway does not: give the URL of an sglang server",
        ),
    ],
)
def test_hint_depends_on_connection_error(error: NoResponseError | UnexpectedResponseError, hint: str) -> None:
    """A gateway responds with 404, and was once treated as a server that requires a key."""
    assert hint in unidentified_server("http://h:1", error, key=None).hint


def test_unreachable_endpoint_is_reported_as_such() -> None:
    error = unidentified_server("http://h:1", NoResponseError("refused"), key=None)
    assert error.message == "no server answers at `http://h:1`: refused"


def test_rejected_key_is_not_requested_again() -> None:
    assert unidentified_server("http://h:1", UnauthorizedError("401"), key=Secret("sk-0123456789")).hint == ""


def test_logprobs_of_another_engine_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    served = {"data": [{"id": "tiny", "owned_by": "vllm"}]}
    monkeypatch.setattr("orchestrator.servers.targets.EngineClient.get", lambda *_: served)
    with pytest.raises(SmokeError, match=r"cannot read log-probabilities of `http.*`: it is vllm"):
        side_of_url("http://127.0.0.1:1", key=None)
