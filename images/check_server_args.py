"""Validate server command lines with sglang's own parser and checks; no server is started.

Run with the engine's own Python (3.10 or newer); imports only the standard library, sglang and its dependencies. Reads
JSON from stdin and prints one JSON line::

    {"argv": [["--model-path", "DIR", "--tp-size", "8"], …],    the arguments of each server
     "platform": "rocm", "arch": "gfx950", "gpus": 8, "vram_bytes": 309220868096, "compute_units": 256,
     "model": {"name": "glm", "files": {"config.json": "{…"}},  null: use the files at `--model-path`
     "rdma": true}                                              whether the server uses RDMA

    {"sglang": "0.5.14", "verdicts": [{"accepted": "validated"}, …]}

A verdict is one of

- `{"accepted": "validated"}`, or `"parsed"` if there is no config.json: then only the parser was run;
- `{"rejected": {"kind", "message", "location", "line", "options"}}`: sglang's exception, the line that raised it, and
  the options without which it is not raised; or a file that does not exist;
- `{"unchecked": REASON}`: sglang raised an exception that is unrelated to the arguments.

`check_server_args.py QUESTION VERDICT` reads and writes files instead, and exits with 3 if sglang rejects a command
line, or if RDMA cannot work here (`{"rejected": {"kind": "rdma", …}}`). It is the first step of a pod, or of a job in
a container; if the check itself fails, the server starts anyway. `check_server_args.py nics` prints the NICs that
libibverbs sees.

No GPU is needed: `pretend` makes torch report the plan's GPUs, and packages that load a GPU driver are replaced by
empty modules. Parser, defaults, model config and checks are sglang's own.
"""

import argparse
import contextlib
import ctypes
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import linecache
import os
import re
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any
from unittest.mock import MagicMock

MODEL_PATH = "--model-path"
# Compiled packages that load a GPU driver: always replaced, because this host may have no driver.
_DRIVEN = {
    "rocm": {"aiter", "amdsmi", "sgl_kernel"},
    "cuda": {"flashinfer", "pynvml", "sgl_kernel"},
    "cpu": {"sgl_kernel"},
}
# Compiled packages that an installation may lack: replaced if they are missing.
_OPTIONAL = {"flashinfer", "triton", "tvm_ffi", "xgrammar"}
# Options that name a file or a folder whose existence `ServerArgs` does not check.
_FILES = {"--tokenizer-path", "--chat-template", "--completion-template", "--speculative-draft-model-path"}
_LINE = 300  # maximum characters of a source line in a verdict
_MESSAGE = 600  # characters of a message in the file of a verdict: Kubernetes keeps 4096 bytes
REJECTED = 3  # exit code


class _Empty(ModuleType):
    """A module in which every name exists."""

    __path__: Sequence[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Anything,), {}) if name[:1].isupper() else MagicMock()


class _AnyNames(type):
    """A metaclass in which every class attribute exists, such as members of an enumeration."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


class _Anything(metaclass=_AnyNames):
    """A class that accepts any arguments and that pydantic accepts as the type of a field."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> dict[str, str]:
        return {"type": "any"}


class _EmptyFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A finder of empty modules for the packages `names`."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        known = name.partition(".")[0] in self._names
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to do."""


class ParserError(Exception):
    """An error of argparse, raised instead of an exit."""


def pretend(request: Mapping[str, Any]) -> None:
    """Make torch report the plan's GPUs instead of those of this host."""
    import torch

    platform, gpus, memory = request["platform"], request["gpus"], request["vram_bytes"]
    torch.compile = lambda function=None, **_: function or (lambda inner: inner)
    if platform == "cpu":
        return
    digits = re.sub(r"\D", "", request["arch"])  # gfx950, sm100
    major, minor = (int(digits[:-2]), int(digits[-2])) if platform == "rocm" else (int(digits[:-1]), int(digits[-1]))
    properties = SimpleNamespace(
        gcnArchName=request["arch"],
        major=major,
        minor=minor,
        total_memory=memory,
        name="GPU",
        multi_processor_count=request["compute_units"],
        warp_size=64 if platform == "rocm" else 32,
    )
    if platform == "rocm":
        torch.version.hip, torch.version.cuda = torch.version.hip or "7.2.0", None
    else:
        torch.version.hip, torch.version.cuda = None, torch.version.cuda or "13.0"
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: gpus
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (major, minor)
    torch.cuda.get_device_name = lambda *_: "GPU"
    torch.cuda.get_device_properties = lambda *_: properties
    torch.cuda.mem_get_info = lambda *_: (memory, memory)


def load(request: Mapping[str, Any]) -> ModuleType:
    """Import sglang's `server_args` as on a host with the plan's GPUs."""
    platform = request["platform"]
    driven = _DRIVEN[platform]
    sys.meta_path.insert(0, _EmptyFinder(driven))
    pretend(request)
    # 0.5.14 and 0.5.16 install their own stub of triton if it is missing (`sglang/_triton_stub.py`).
    spec = importlib.util.find_spec("sglang")
    locations = list(spec.submodule_search_locations or ()) if spec else []
    stubbed = {"triton"} if any(Path(location, "_triton_stub.py").is_file() for location in locations) else set()
    sys.meta_path.append(_EmptyFinder(_OPTIONAL - stubbed))
    if platform != "cpu":
        with contextlib.suppress(ImportError):
            core = importlib.import_module("triton.language.core")
            core.view = getattr(core, "view", MagicMock())  # sglang's stub lacks a name that torch asks for on a GPU
    server_args = importlib.import_module("sglang.srt.server_args")
    if platform != "cpu":
        for name, module in list(sys.modules.items()):
            if name.startswith("sglang.") and "get_device_memory_capacity" in vars(module):
                module.get_device_memory_capacity = lambda *_: request["vram_bytes"] >> 20
    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    # Building the parser takes most of the time of a check, and `_culprits` would build one for each option.
    server_args.ServerArgs.add_cli_args = lambda new: vars(new).update(vars(parser))
    return server_args


class ArgumentChecker:
    """sglang's parser and validation. `replaced` maps the path that sglang reads to the path in the command line."""

    def __init__(self, server_args: ModuleType, *, cpu: bool, replaced: Mapping[str, str]) -> None:
        """Make argparse raise ParserError instead of exiting."""
        self._module = server_args
        self._cpu = cpu
        self._replaced = replaced
        argparse.ArgumentParser.error = _raise_error  # type: ignore[method-assign, assignment]

    def verdict(self, argv: Sequence[str]) -> dict[str, object]:
        """Return the verdict on one command line."""
        model = argv[argv.index(MODEL_PATH) + 1]
        if not Path(model, "config.json").is_file():
            error = self._raised(argv, parse_only=True)
            return self._rejection(argv, error, parse_only=True) if error else {"accepted": "parsed"}
        error = self._raised(argv)
        if not isinstance(error, ParserError) and (missing := self._missing_file(argv, model)) is not None:
            return {"rejected": missing}
        if error is None:
            return {"accepted": "validated"}
        if _is_of_this_host(error):
            return {"unchecked": self._text(error)}
        if not isinstance(error, ParserError):
            bare = self._raised([MODEL_PATH, model, *(["--device", "cpu"] if self._cpu else [])])
            if bare is not None and _signature(bare) == _signature(error):
                return {"unchecked": f"sglang rejects this model even without options: {self._text(error)}"}
        return self._rejection(argv, error)

    def _missing_file(self, argv: Sequence[str], model: str) -> "dict[str, object] | None":
        """Return the rejection of a missing file; a file in the folder of the model may be staged later."""
        model_folder = Path(self._replaced[model]).parent if model in self._replaced else None
        for option, value in itertools.pairwise(argv):
            path = Path(value)
            if option not in _FILES or not _is_path(value) or path.exists():
                continue
            if model_folder is None or not path.is_relative_to(model_folder):
                rejection = {
                    "kind": "FileNotFoundError",
                    "message": f"`{value}` does not exist",
                    "location": "",
                    "line": "",
                }
                return {**rejection, "options": [option.removeprefix("--")]}
        return None

    def _raised(self, argv: Sequence[str], *, parse_only: bool = False) -> BaseException | None:
        """Return the exception that sglang raises for a command line; None if it accepts the command line."""
        before = dict(os.environ)  # sglang stores some defaults there
        try:
            if parse_only:
                parser = argparse.ArgumentParser()
                self._module.ServerArgs.add_cli_args(parser)
                parser.parse_args(list(argv))
                return None
            args = self._module.prepare_server_args(list(argv))
            getattr(args, "resolve_once", lambda: None)()  # since 0.5.20
            args.check_server_args()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - every exception is a verdict
            return error
        finally:
            os.environ.clear()
            os.environ.update(before)
        return None

    def _rejection(self, argv: Sequence[str], error: BaseException, *, parse_only: bool = False) -> dict[str, object]:
        location, line = _location(error.__traceback__)
        message = self._text(error)
        if isinstance(error, ParserError):
            kind, options = "argparse", [option for option, _ in _leave_one_out(argv) if _names(message, option)]
        else:
            kind, options = type(error).__name__, self._culprits(argv, error, parse_only=parse_only)
        rejection = {"kind": kind, "message": message, "location": location, "line": line, "options": options}
        return {"rejected": rejection}

    def _culprits(self, argv: Sequence[str], error: BaseException, *, parse_only: bool) -> list[str]:
        """Return the options whose removal makes sglang accept the rest, else those that change the exception."""
        accepted, different = [], []
        for option, remaining in _leave_one_out(argv):
            raised = self._raised(remaining, parse_only=parse_only)
            if raised is None:
                accepted.append(option)
            elif _signature(raised) != _signature(error):
                different.append(option)
        return accepted or different

    def _text(self, error: BaseException) -> str:
        text = str(error)
        for local_path, original_path in self._replaced.items():
            text = text.replace(local_path, original_path)
        return text if isinstance(error, ParserError) else f"{type(error).__name__}: {text}".removesuffix(": ")


def _raise_error(_parser: argparse.ArgumentParser, message: str) -> None:
    raise ParserError(message)


def _leave_one_out(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each option without dashes, and the command line without that option; the model path stays."""
    starts = [at for at, word in enumerate(argv) if word.startswith("--")]
    for start, end in zip(starts, [*starts[1:], len(argv)], strict=True):
        if argv[start] != MODEL_PATH:
            yield argv[start].removeprefix("--"), [*argv[:start], *argv[end:]]


def _is_of_this_host(error: BaseException) -> bool:
    """Return whether an exception is due to this host: a missing file, package or GPU."""
    frames = traceback.extract_tb(error.__traceback__)
    raised_in_torch = bool(frames) and "/torch/" in frames[-1].filename
    return isinstance(error, ImportError | OSError) or raised_in_torch or MagicMock.__name__ in str(error)


def _is_path(value: str) -> bool:
    """Return whether a value is certainly a path; a template may be a name, and a tokenizer may be on the hub."""
    return value.startswith(("/", "./", "../", "~")) or value.endswith((".jinja", ".json"))


def _names(message: str, option: str) -> bool:
    return re.search(rf"--{re.escape(option)}(?![\w-])", message) is not None


def _signature(error: BaseException) -> tuple[str, str]:
    return type(error).__name__, _location(error.__traceback__)[0]


def _location(trace: TracebackType | None) -> tuple[str, str]:
    """Return the innermost line of sglang's sources that raised, as `server_args.py:123`, and its text."""
    frames = traceback.extract_tb(trace)
    sglang_frames = [frame for frame in frames if "/sglang/" in frame.filename]
    if not sglang_frames:
        return "", ""
    last = sglang_frames[-1]
    first = last.lineno or 0
    end = getattr(last, "end_lineno", None) or first  # Python 3.11
    text = " ".join(linecache.getline(last.filename, number).strip() for number in range(first, end + 1))
    return f"{Path(last.filename).name}:{first}", text[:_LINE]


def write_model_files(request: Mapping[str, Any], folder: Path) -> tuple[list[list[str]], dict[str, str]]:
    """Write the model's files; return the command lines with their path, and the original path by each new path."""
    model, replaced = request["model"], {}
    commands = [list(argv) for argv in request["argv"]]
    if model is not None:
        directory = folder / model["name"]
        directory.mkdir(parents=True)
        for name, text in model["files"].items():
            (directory / Path(name).name).write_text(text, encoding="utf-8")
        for argv in commands:
            at = argv.index(MODEL_PATH) + 1
            replaced[str(directory)] = argv[at]
            argv[at] = str(directory)
    return commands, replaced


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on each command line of a request."""
    os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
    with tempfile.TemporaryDirectory(prefix="deploy-arguments-") as folder:
        commands, replaced = write_model_files(request, Path(folder))
        checker = ArgumentChecker(load(request), cpu=request["platform"] == "cpu", replaced=replaced)
        verdicts = [checker.verdict(argv) for argv in commands]
    return {"sglang": str(importlib.import_module("sglang.version").__version__), "verdicts": verdicts}


def visible_nics() -> set[str]:
    """Return the RDMA NICs for which libibverbs has a provider library; empty without libibverbs."""
    try:
        verbs = ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return set()
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
    count = ctypes.c_int()
    devices = verbs.ibv_get_device_list(ctypes.byref(count))
    return {verbs.ibv_get_device_name(devices[number]).decode() for number in range(count.value)}


def rdma_problem(sysfs: Path = Path("/sys/class/infiniband")) -> str:
    """Return why RDMA cannot work here; "" if nothing speaks against it.

    With a provider library of another version than the node's driver, libibverbs sees no NIC (sglang #33374).
    """
    nics = sorted(sysfs.glob("*"))
    if not nics:
        return "the node has no RDMA NIC"
    seen = visible_nics()
    if missing := [nic.name for nic in nics if nic.name not in seen]:
        libraries = "the image lacks the provider libraries (rdma-core) of the node's driver"
        return f"libibverbs does not see {', '.join(missing)}: {libraries}"
    vendors = {nic: _content(nic / "device/vendor") for nic in nics}
    [(vendor, _)] = Counter(vendors.values()).most_common(1)  # the others are not of the fabric
    index = os.environ.get("MC_GID_INDEX", "")
    fabric = [nic for nic in nics if vendors[nic] == vendor and index.isdecimal()]
    wrong = [nic.name for nic in fabric if not _is_routable(nic / "ports/1", index)]
    return f"MC_GID_INDEX={index} is no row of RoCE v2 with an address on {', '.join(wrong)}" if wrong else ""


def _is_routable(port: Path, index: str) -> bool:
    """Return whether a router forwards that row of a port's GID table; true without a link, and for InfiniBand."""
    if not _content(port / "state").endswith("ACTIVE") or _content(port / "link_layer") != "Ethernet":
        return True
    gid, empty = _content(port / "gids" / index), "0000:0000:0000:0000:0000:0000:"
    return _content(port / "gid_attrs/types" / index) == "RoCE v2" and not gid.startswith(("fe80:", empty))


def _content(file: Path) -> str:
    with contextlib.suppress(OSError):  # the type of an empty row cannot be read
        return file.read_text(encoding="utf-8").strip()
    return ""


def first_step(question: Path, verdict: Path) -> int:
    """Check before a server starts; return REJECTED, and write the file `verdict`, if sglang rejects a command line."""
    try:
        request = json.loads(question.read_text(encoding="utf-8"))
        if problem := rdma_problem() if request["rdma"] else "":
            rejected = {"kind": "rdma", "message": problem, "location": "", "line": "", "options": []}
            answered: dict[str, Any] = {"verdicts": [{"rejected": rejected}]}
        else:
            with contextlib.redirect_stdout(sys.stderr):
                answered = answer(request)
    except Exception as error:  # noqa: BLE001 - the start of the server shows the error
        print(f"arguments not checked by sglang: {error!r}", file=sys.stderr)
        return 0
    print(json.dumps(answered), file=sys.stderr)
    if not any("rejected" in entry for entry in answered["verdicts"]):
        return 0
    for entry in answered["verdicts"]:
        if "rejected" in entry:
            entry["rejected"]["message"] = entry["rejected"]["message"][:_MESSAGE]
    verdict.write_text(json.dumps(answered), encoding="utf-8")
    return REJECTED


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(first_step(Path(sys.argv[1]), Path(sys.argv[2])))
    if sys.argv[1:] == ["nics"]:
        print(*sorted(visible_nics()))
        sys.exit()
    request = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):  # modules print while they are imported
        result = answer(request)
    print(json.dumps(result))
