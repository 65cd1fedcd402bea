"""Output of rendered files: into a folder, to standard output, or as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.console import info, print_data
from orchestrator.core.safe_paths import RelativePath
from orchestrator.render.artifacts import RenderedFile
from orchestrator.runs.run_dir import write_files


def write_rendered(folder: Path, files: Sequence[RenderedFile]) -> None:
    """Write the files into a folder, and print the path of each."""
    write_files(folder, files)
    for file in files:
        info(f"wrote {folder / RelativePath(file.path)}")


def print_rendered(files: Sequence[RenderedFile]) -> None:
    """Print the files, each after a line with its path."""
    for file in files:
        print_data(f"==> {file.path} <==\n{_text(file)}")


@dataclass(frozen=True, kw_only=True)
class FileOutput:
    """A rendered file, written to `path`, or to be written to it."""

    path: str
    executable: bool
    content: str


def file_outputs(files: Sequence[RenderedFile], folder: Path | None) -> tuple[FileOutput, ...]:
    """Return the files for JSON, with their paths if they were written to a folder."""
    return tuple(
        FileOutput(
            path=str(folder / RelativePath(file.path)) if folder else file.path,
            executable=file.executable,
            content=_text(file),
        )
        for file in files
    )


def _text(file: RenderedFile) -> str:
    return file.content.decode(errors="replace")
