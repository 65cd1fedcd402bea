"""The header with the key."""

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.core.secret import Secret
from orchestrator.engine import authorization


def test_the_key_goes_into_one_header() -> None:
    assert authorization(Secret("sk-0123456789")) == {"Authorization": "Bearer sk-0123456789"}
    assert authorization(None) == authorization(Secret("")) == {}


@pytest.mark.parametrize("key", ["sk-line\r\nX-Other: 1", "sk-clé", "sk-end\n"])
def test_a_key_that_no_header_carries_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        authorization(Secret(key))
    assert "sk-" not in caught.value.message + caught.value.hint
