"""An endpoint that does not say what it is: what helps depends on why."""

import pytest

from orchestrator.core.secrets import Secret
from orchestrator.engine.responses import KeyRefusedError, NoAnswerError, OddAnswerError
from orchestrator.servers.start.verify import untold


@pytest.mark.parametrize(
    ("error", "helps"),
    [
        (NoAnswerError("refused"), "lists the URLs of your own servers"),
        (KeyRefusedError("401"), "`--api-key-env VARIABLE` names the variable that holds the key"),
        (OddAnswerError("`/server_info` answers 404"), "a gateway does not: give the URL of one of its servers"),
    ],
)
def test_what_helps_is_of_the_reason(error: NoAnswerError | OddAnswerError, helps: str) -> None:
    """A gateway answers 404, and was taken for a server that wants a key."""
    assert helps in untold("http://h:1", error, key=None).hint


def test_a_key_that_was_refused_is_not_asked_for_again() -> None:
    assert untold("http://h:1", KeyRefusedError("401"), key=Secret("sk-0123456789")).hint == ""
