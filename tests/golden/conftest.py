"""Show what differs where a helper of these tests asserts."""

import pytest

pytest.register_assert_rewrite("golden_files")
