"""Test the generation of models into a directory."""

from collections.abc import Callable
from pathlib import Path

import pytest
from plan_samples import plan_of

from orchestrator.checkpoints.generate import generate_model
from orchestrator.core.console import Progress
from orchestrator.core.errors import BuildError
from orchestrator.core.paths import Home


def test_directory_with_other_files_is_not_emptied(tmp_path: Path) -> None:
    """A model named after a directory with files once emptied that directory."""
    generator = tmp_path / "tiny_model.py"
    generator.write_text("")
    home = Home(tmp_path / "home")
    user_file = home.models / "tiny" / "thesis.pdf"
    user_file.parent.mkdir(parents=True)
    user_file.write_text("years of work")
    with pytest.raises(BuildError, match="the directory has other files"):
        generate_model(plan_of("cpu-tiny").model, generator, python=Path("python3"), home=home, progress=Progress())
    assert user_file.read_text() == "years of work"


def test_generator_without_output_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator without output once caused an internal error."""
    generator = tmp_path / "owl.py"
    generator.write_text("print(1)")
    monkeypatch.setattr("orchestrator.checkpoints.generate.subprocesses.follow", lambda *_: 0)
    with pytest.raises(BuildError, match="did not create") as caught:
        generate_model(
            plan_of("cpu-tiny").model, generator, python=Path("python3"), home=Home(tmp_path), progress=Progress()
        )
    assert caught.value.location == str(generator)


def test_generated_model_never_appears_without_its_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill at any moment leaves either a complete model with its marker, or nothing that prevents a new start."""
    home, generator = Home(tmp_path), tmp_path / "tiny_model.py"
    generator.write_text("")
    target = home.models / "tiny"

    def make(argv: list[str], _: object) -> int:
        Path(argv[2]).mkdir()
        assert not target.exists()
        raise KeyboardInterrupt

    def generate() -> Path:
        model = plan_of("cpu-tiny").model
        return generate_model(model, generator, python=Path("python3"), home=home, progress=Progress())

    monkeypatch.setattr("orchestrator.checkpoints.generate.subprocesses.follow", make)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            generate()

    monkeypatch.setattr(
        "orchestrator.checkpoints.generate.subprocesses.follow", lambda argv, _: Path(argv[2]).mkdir() or 0
    )
    assert [path.name for path in generate().iterdir()] == [".generator"]


def test_full_disk_during_generation_names_target_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator's own message about a failed write names no file."""

    def fail(_: object, keep: Callable[[str], object]) -> int:
        keep("OSError: [Errno 28] No space left on device")
        return 1

    (tmp_path / "owl.py").touch()
    monkeypatch.setattr("orchestrator.checkpoints.generate.subprocesses.follow", fail)
    model, home = plan_of("cpu-tiny").model, Home(tmp_path)
    with pytest.raises(OSError, match="No space left on device") as caught:
        generate_model(model, tmp_path / "owl.py", python=Path("python3"), home=home, progress=Progress())
    assert str(caught.value.filename).startswith(f"{home.models}/")
