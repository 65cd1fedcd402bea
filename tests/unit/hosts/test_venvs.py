"""Test the virtual environments of engines (keys, early rejections, uv's output and settings) without building one."""

from pathlib import Path

import pytest

from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError, HostError
from orchestrator.core.paths import Home, data_root
from orchestrator.hosts.venvs.installer import _run, hint, pip_settings_for_uv
from orchestrator.hosts.venvs.venv import _Recipe, ensure_venv

CPU = "torch==2.13.0+cpu\nsglang==0.5.14\n"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "cpu_shim").mkdir()
    (tmp_path / "cpu_shim/shim.py").write_text("")
    (tmp_path / "engine.txt").write_text(CPU)
    return tmp_path


def test_shipped_requirements_pin_packages_and_cpu_torch() -> None:
    lines = (data_root() / "images/sglang-cpu-0.5.14.txt").read_text().splitlines()
    packages = [line for line in lines if line and not line.startswith("#")]

    assert "torch==2.13.0+cpu" in packages
    assert "sglang==0.5.14" in packages
    assert all(package.count("==") == 1 for package in packages)


def test_venv_key_depends_on_requirements_and_shim(images: Path) -> None:
    first = _Recipe.read(images / "engine.txt", images / "cpu_shim").digest
    (images / "cpu_shim/shim.py").write_text("changed")
    second = _Recipe.read(images / "engine.txt", images / "cpu_shim").digest
    (images / "engine.txt").write_text(CPU + "h11==0.16.0\n")
    third = _Recipe.read(images / "engine.txt", images / "cpu_shim").digest

    assert len({first, second, third}) == 3


def test_shim_is_used_only_with_cpu_torch(images: Path) -> None:
    (images / "engine.txt").write_text("torch==2.13.0+cu130\n")

    assert _Recipe.read(images / "engine.txt", images / "cpu_shim").shim == ()


def test_finished_environment_is_reused(images: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    folder = home.environments / _Recipe.read(images / "engine.txt", images / "cpu_shim").digest[:16]
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").write_text("")
    (folder / "environment.json").write_text("{}")

    environment = ensure_venv(images / "engine.txt", home=home, progress=Progress(), shim=images / "cpu_shim")

    assert (environment.python, environment.built) == (folder / "bin/python", False)


def test_missing_requirement_file_is_named(images: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"no requirement file `other\.txt`"):
        ensure_venv(images / "other.txt", home=Home(tmp_path), progress=Progress())


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("Because there is no version of torch==2.13.0+cpu and you require torch==2.13.0+cpu", "PIP_FIND_LINKS"),
        ("Caused by: No space left on device (os error 28)", "DEPLOY_HOME"),
        ("Because there is no version of orjson==3 and you require orjson==3", "PIP_INDEX_URL"),
    ],
)
def test_hint_depends_on_uv_error(text: str, advice: str) -> None:
    assert advice in hint(text)


def test_insufficient_disk_space_is_rejected_before_install(tmp_path: Path) -> None:
    requirements = tmp_path / "engine-1.txt"
    requirements.write_text("# Installed size: 900,000,000 MB (an engine of tomorrow)\npackaging==26.0\n")
    home = Home(tmp_path / "home")
    with pytest.raises(HostError, match=r"not enough disk space: 900000\.0 GB needed, [\d.]+ GB free") as error:
        ensure_venv(requirements, home=home, progress=Progress())
    assert "DEPLOY_HOME" in error.value.hint
    assert [path.suffix for path in home.environments.iterdir()] == [".lock"]


@pytest.mark.parametrize("engine", ["sglang-cpu-0.5.14", "sglang-cuda-0.5.16", "lm-eval-0.4.13", "smg-1.13.0"])
def test_a_shipped_requirement_file_names_its_size(engine: str) -> None:
    assert "\n# Installed size: " in (data_root() / "images" / f"{engine}.txt").read_text()


# Recorded from uv 0.13.9 with piped output, shortened.
UV_OUTPUT = """\
Using Python 3.11.7 environment at: 4f799c5ef15ade56
Resolved 101 packages in 238ms
Downloading scipy (33.7MiB)
Downloading sentencepiece (1.6MiB)
Downloading hf-xet (4.1MiB)
 Downloaded sentencepiece
Prepared 101 packages in 3.44s
 + scipy==1.17.1"""


class RecordedProgress(Progress):
    """Records the lines of a log and the transient texts of a terminal."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.transient_texts: list[str] = []

    def update(self, text: str, *, stage: str | None = None, transient: str = "") -> None:  # noqa: ARG002 - same signature
        if text not in self.lines:
            self.lines.append(text)
        self.transient_texts.append(transient)


def test_uv_progress_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(_argv: object, on_line: object, **_: object) -> int:
        assert callable(on_line)
        for line in UV_OUTPUT.splitlines():
            on_line(line)
        return 0

    monkeypatch.setattr("orchestrator.core.subprocesses.follow", follow)
    progress = RecordedProgress()
    _run("installing", ["uv"], Path("sglang.txt"), progress, cwd=Path(), env={})

    assert progress.lines == ["environment `sglang`: installing"]
    assert "Downloading scipy (33.7MiB)" in progress.transient_texts


def test_pip_settings_are_passed_to_uv() -> None:
    settings = """\
:env:.index-url='https://mirror.example/simple'
global.cert='/etc/ssl/certs/ca-certificates.crt'
global.extra-index-url='https://a.example/simple https://b.example/simple'
global.index-url='https://old.example/simple'
global.timeout='60'
install.find-links='\\n/opt/wheels\\n/opt/more'"""
    assert pip_settings_for_uv(settings, {}) == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://a.example/simple https://b.example/simple",
        "UV_FIND_LINKS": "/opt/wheels,/opt/more",
        "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
    }


def test_uv_settings_take_precedence_over_pip() -> None:
    settings = "global.index-url='https://mirror.example/simple'"
    assert pip_settings_for_uv(settings, {"UV_DEFAULT_INDEX": "https://own.example"}) == {}
    assert pip_settings_for_uv("", {}) == {}
