"""Test images/image_facts.py, which reads torch's platform from its version.py without importing it."""

from pathlib import Path

import pytest
from image_facts import platform_of


@pytest.mark.parametrize(
    ("version", "platform"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.2.53211'\n", "rocm"),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "cuda"),
        ("cuda = '12.9'\nhip = None\n", "cuda"),  # the format of older versions
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu: Optional[str] = None\n", "cpu"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu: Optional[str] = '2025.3'\n", None),
        ("__version__ = '2.9.1'\n", None),
    ],
)
def test_platform_is_read_from_torch_version(version: str, platform: str | None, tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text(f"raise ImportError\n{version}")
    facts = platform_of(tmp_path)
    assert (facts and facts["platform"]) == platform


def test_torch_without_version_has_no_platform(tmp_path: Path) -> None:
    assert platform_of(tmp_path) is None
