"""Test the authorization header and the validation of API keys."""

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.core.secrets import Secret
from orchestrator.engine.endpoints import authorization, read_key


def test_api_key_goes_into_authorization_header() -> None:
    assert authorization(Secret("sk-0123456789")) == {"Authorization": "Bearer sk-0123456789"}
    assert authorization(None) == authorization(Secret("")) == {}


def test_only_trailing_newline_of_key_is_stripped() -> None:
    assert read_key('sk "quoted"\\ 1\r\n', location="KEY").reveal() == 'sk "quoted"\\ 1'


@pytest.mark.parametrize(
    "key",
    [
        "sk-line\r\nX-Other: 1",
        "sk-clé",
        "sk-\x1b[31m",
        "sk-nul\0",
        " sk-blank",
        "sk-blank ",
        " ",
        "\n",
        "-sk-option",
        "\tsk-",
        "abc",
    ],
)
def test_invalid_api_key_is_rejected_without_revealing_it(key: str) -> None:
    with pytest.raises(UsageError, match="the API key in `KEY`") as caught:
        read_key(key, location="KEY")
    assert "sk-" not in caught.value.message + caught.value.hint
