"""The header with the key."""

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.core.secrets import Secret
from orchestrator.engine.endpoints import authorization, read_key


def test_the_key_goes_into_one_header() -> None:
    assert authorization(Secret("sk-0123456789")) == {"Authorization": "Bearer sk-0123456789"}
    assert authorization(None) == authorization(Secret("")) == {}


def test_a_key_loses_the_line_end_of_its_file_and_nothing_else() -> None:
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
def test_a_key_that_no_server_can_be_given_is_refused_with_its_place_and_not_shown(key: str) -> None:
    with pytest.raises(UsageError, match="the API key in `KEY` ") as caught:
        read_key(key, location="KEY")
    assert "sk-" not in caught.value.message + caught.value.hint
