"""Check command lines with the `ServerArgs` of one sglang version. The engine's Python runs this file.

    server_args.py UNPACKED_WHEEL rocm|cuda|cpu     JSON argument lists on stdin, one verdict for each list on stdout

torch is patched to report eight GPUs: MI355X (gfx950, by `torch.version.hip`) or B200 (sm100). Compiled packages are
replaced by empty modules. The parser, defaults, model config and checks are sglang's own.
"""

import contextlib
import json
import os
import sys
import traceback
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch

MEMORY = {"rocm": 288 << 30, "cuda": 180 << 30}
CAPABILITY = {"rocm": (9, 5), "cuda": (10, 0)}
FLAGS = Path(__file__).parents[2] / "profiles/engines/flags"  # generate.py


def pretend(platform: str) -> None:
    """Make torch report eight GPUs of a platform."""
    torch.compile = lambda function=None, **_: function or (lambda inner: inner)
    if platform == "cpu":
        return
    major, minor = CAPABILITY[platform]
    properties = SimpleNamespace(
        gcnArchName="gfx950", major=major, minor=minor, total_memory=MEMORY[platform], name="GPU",
        multi_processor_count=256, warp_size=64,
    )  # fmt: skip
    torch.version.hip, torch.version.cuda = ("7.2.0", None) if platform == "rocm" else (None, "13.0")
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 8
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (major, minor)
    torch.cuda.get_device_name = lambda *_: "GPU"
    torch.cuda.get_device_properties = lambda *_: properties
    torch.cuda.mem_get_info = lambda *_: (MEMORY[platform], MEMORY[platform])
    # As in the images: with these, sglang uses aiter's paged kernel and pages of 64 tokens.
    os.environ.update({"SGLANG_USE_AITER": "1", "AITER_ENABLE_AOT_GLUON_PA_MQA_LOGITS": "1"})


class Mocked(ModuleType):
    """A module that has every name."""

    __path__: Sequence[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


def engine(root: Path, platform: str) -> tuple[ArgumentParser, Any]:
    """Return the parser and the class `ServerArgs` of the wheel."""
    sys.path.insert(0, str(FLAGS))
    import generate

    class Finder(generate._EmptyFinder):  # type: ignore[misc]
        def create_module(self, spec: ModuleSpec) -> ModuleType:
            return Mocked(spec.name)

    generate._Anything.__init__ = lambda *_, **__: None  # 0.5.19 and 0.5.20 make a `triton.Config` on ROCm
    sys.meta_path.append(Finder({"aiter", "amdsmi"} if platform == "rocm" else {"pynvml"}))
    parser = generate.server_parser(root)
    with contextlib.suppress(ImportError):
        from triton.language import core  # sglang's stub; torch uses this name on a GPU

        core.view = getattr(core, "view", MagicMock())
    from sglang.srt import server_args
    from sglang.srt.utils import common

    if platform != "cpu":
        for module in (common, server_args):
            module.get_device_memory_capacity = lambda *_: MEMORY[platform] >> 20
    return parser, server_args.ServerArgs


def judge(parser: ArgumentParser, kind: Any, argv: Sequence[str]) -> str:  # noqa: ANN401 - the class of that version
    """Return `accepted`, or the engine's error and its location."""
    try:
        args = kind.from_cli_args(parser.parse_args(argv))
        resolve: Callable[[], None] = getattr(args, "resolve_once", lambda: None)  # a separate step in 0.5.23
        resolve()
        args.check_server_args()
    except SystemExit as error:
        return f"argparse: {error}"
    except Exception as error:  # noqa: BLE001 - the error is the verdict
        last = traceback.extract_tb(error.__traceback__)[-1]
        first = str(error).partition("\n")[0]
        return f"{type(error).__name__}: {first} ({Path(last.filename).name}:{last.lineno})"
    return "accepted"


def reject(message: str) -> None:
    """Raise argparse's message instead of exiting."""
    raise SystemExit(message)


if __name__ == "__main__":
    platform = sys.argv[2]
    with contextlib.redirect_stdout(sys.stderr):
        pretend(platform)
        parser, kind = engine(Path(sys.argv[1]), platform)
        parser.error = reject
        verdicts = [judge(parser, kind, argv) for argv in json.load(sys.stdin)]
    print(json.dumps(verdicts))
