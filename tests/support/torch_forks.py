"""Programs for the engine's own Python that need torch, each in a fork of one process that has imported it.

torch, torchvision, transformers and openai take 7 s of CPU time to import, which sglang's own argument parser wants all
of. As many programs as there are cores run at a time. What one of them replaces in a module, no other sees.
"""

import contextlib
import importlib
import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

IMPORTED = ("torch", "torchvision.io", "transformers.modeling_layers", "openai")
Key = TypeVar("Key")


@dataclass(frozen=True, kw_only=True)
class Program:
    """What is run: a program's path or, as of `python -c`, its text; its arguments, and what it reads."""

    program: str
    argv: tuple[str, ...] = ()
    stdin: str = ""


def run_forked(
    python: Path, programs: Mapping[Key, Program], environ: Mapping[str, str] | None = None
) -> Mapping[Key, "subprocess.CompletedProcess[str]"]:
    """How each of them ended, as if it had been started by itself."""
    with TemporaryDirectory() as folder:
        for number, program in enumerate(programs.values()):
            place = Path(folder, str(number))
            place.mkdir()
            (place / "program").write_text(json.dumps(asdict(program)))
            (place / "stdin").write_text(program.stdin)
        argv = [str(python), __file__, folder]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        codes = json.loads(done.stdout.splitlines()[-1])
        return {key: _ended(Path(folder, str(number)), codes[number]) for number, key in enumerate(programs)}


def _ended(place: Path, code: int) -> "subprocess.CompletedProcess[str]":
    out, errors = ((place / name).read_text() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess([], code, out, errors)


def run_all(folder: Path) -> list[int]:
    """Each program of the folder, in a fork; their exit codes in order."""
    for name in IMPORTED:
        importlib.import_module(name)
    waiting = [folder / str(number) for number, _ in enumerate(folder.iterdir())]
    running: dict[int, int] = {}
    codes = [0] * len(waiting)
    for number, place in enumerate(waiting):
        if len(running) == len(os.sched_getaffinity(0)):
            _wait_for_one(running, codes)
        if not (child := os.fork()):
            os._exit(_carried_out(place))
        running[child] = number
    while running:
        _wait_for_one(running, codes)
    return codes


def _wait_for_one(running: dict[int, int], codes: list[int]) -> None:
    child, status = os.wait()
    codes[running.pop(child)] = os.waitstatus_to_exitcode(status)


def _carried_out(place: Path) -> int:
    """Become this program, to its end."""
    given = json.loads((place / "program").read_text())
    for number, name, flags in ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_RDWR), (2, "stderr", os.O_RDWR)):
        os.dup2(os.open(place / name, flags | os.O_CREAT, 0o600), number)
    try:
        if Path(given["program"]).is_absolute():
            sys.argv, sys.path[0] = [given["program"], *given["argv"]], str(Path(given["program"]).parent)
            runpy.run_path(given["program"], run_name="__main__")
        else:
            sys.argv, sys.path[0] = ["-c", *given["argv"]], ""
            exec(compile(given["program"], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - a test's own
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else bool(left.code)
    except BaseException:  # noqa: BLE001 - as an interpreter ends
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    return code


if __name__ == "__main__":
    print(json.dumps(run_all(Path(sys.argv[1]))))
