"""Let pytest show the difference when a helper's assertion fails."""

import pytest

pytest.register_assert_rewrite("golden_files")
