"""What is said while packages are installed, and what uv is told of pip's own settings."""

from pathlib import Path

import pytest

from orchestrator.core.console import Progress
from orchestrator.hosts.venvs.installer import _run, pip_settings_for_uv

# Recorded, shortened: uv 0.13.9 with its output in a pipe.
UV = """\
Using Python 3.11.7 environment at: 4f799c5ef15ade56
Resolved 101 packages in 238ms
Downloading scipy (33.7MiB)
Downloading sentencepiece (1.6MiB)
Downloading hf-xet (4.1MiB)
 Downloaded sentencepiece
Prepared 101 packages in 3.44s
 + scipy==1.17.1"""


class Recording(Progress):
    """Keeps what a log and what a terminal would show."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.beside: list[str] = []

    def update(self, text: str, *, stage: str | None = None, transient: str = "") -> None:  # noqa: ARG002 - recorded alone
        if text not in self.lines:
            self.lines.append(text)
        self.beside.append(transient)


def test_what_uv_does_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(_argv: object, take: object, **_: object) -> int:
        assert callable(take)
        for line in UV.splitlines():
            take(line)
        return 0

    monkeypatch.setattr("orchestrator.core.subprocesses.follow", follow)
    progress = Recording()
    _run("installing", ["uv"], Path("sglang.txt"), progress, cwd=Path(), env={})

    assert progress.lines == ["environment `sglang`: installing"]
    assert "Downloading scipy (33.7MiB)" in progress.beside


def test_uv_is_told_what_pip_knows_of_indexes_and_certificates() -> None:
    listed = """\
:env:.index-url='https://mirror.example/simple'
global.cert='/etc/ssl/certs/ca-certificates.crt'
global.extra-index-url='https://a.example/simple https://b.example/simple'
global.index-url='https://old.example/simple'
global.timeout='60'
install.find-links='\\n/opt/wheels\\n/opt/more'"""
    assert pip_settings_for_uv(listed, {}) == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://a.example/simple https://b.example/simple",
        "UV_FIND_LINKS": "/opt/wheels,/opt/more",
        "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
    }


def test_what_uv_is_told_itself_stands() -> None:
    listed = "global.index-url='https://mirror.example/simple'"
    assert pip_settings_for_uv(listed, {"UV_DEFAULT_INDEX": "https://own.example"}) == {}
    assert pip_settings_for_uv("", {}) == {}
