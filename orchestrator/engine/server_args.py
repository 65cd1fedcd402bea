"""The check of command lines by an engine's own `ServerArgs`: questions and verdicts.

`images/check_server_args.py` runs in the engine's Python, constructs `ServerArgs` and prints the verdicts.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from orchestrator.core.text import parse_json
from orchestrator.engine.launch import MODULE, PROFILE_KEYS

_OPTION: Final = re.compile(r"--([a-z0-9][a-z0-9-]*)")
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[_-][a-z0-9]+)*")
_PARSER: Final = "argparse"
_RDMA: Final = "rdma"


@dataclass(frozen=True, kw_only=True)
class ArgumentQuestion:
    """Command lines to check, and the GPUs to check them for.

    `files` are the model's text files by name; with None, the program reads the model path of the command line.
    """

    argv: tuple[tuple[str, ...], ...]
    platform: str  # rocm | cuda | cpu
    arch: str
    gpus: int
    vram_bytes: int
    compute_units: int
    model: str
    files: Mapping[str, str] | None
    rdma: bool  # whether the servers use RDMA

    def to_json(self) -> str:
        """Return the question as input for the program; equal questions give equal text."""
        data = asdict(self)
        files = data.pop("files")
        data["model"] = None if files is None else {"name": self.model, "files": files}
        return json.dumps(data, sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class ArgumentRejection:
    """The engine's reason to reject a command line. Removing any of `options` avoids this rejection."""

    kind: str  # `argparse`, the class of the exception, or `rdma` if RDMA cannot work on the node
    message: str
    location: str  # `server_args.py:123`, in the engine's sources
    line: str  # the text of that line
    options: tuple[str, ...]

    @property
    def text(self) -> str:
        """The engine's message with its location; for an assertion without a message, the asserted expression."""
        if self.kind == _PARSER:
            return self.message
        summary = f"`{self.line}`" if self.message == self.kind and self.line else self.message
        return f"{summary} ({self.location})" if self.location else summary

    @property
    def is_of_node(self) -> bool:
        """Whether the node is the cause, not the command line."""
        return self.kind == _RDMA

    @property
    def summary(self) -> str:
        """The rejection as a sentence."""
        return self.text if self.is_of_node else f"sglang rejected its arguments: {self.text}"

    def rejected_options(self, option_names: Collection[str]) -> tuple[str, ...]:
        """Return the rejected options among `option_names`; empty if none can be identified."""
        if options := tuple(name for name in self.options if name in option_names):
            return options
        for text, pattern in ((self.message, _OPTION), (self.message, _NAME), (self.line, _NAME)):
            names = (name.replace("_", "-") for name in pattern.findall(text))
            if options := tuple(dict.fromkeys(name for name in names if name in option_names)):
                return options
        return ()

    def keys(self, option_names: Collection[str]) -> tuple[tuple[str, ...], ...]:
        """Return the paths of the profile keys that set `rejected_options`; only paths below `flags`, if any."""
        options = self.rejected_options(
            [name for name in option_names if name not in PROFILE_KEYS]
        ) or self.rejected_options(option_names)
        return tuple(PROFILE_KEYS.get(name, ("flags", name)) for name in options)


@dataclass(frozen=True, kw_only=True)
class ArgumentVerdict:
    """The verdict on one command line: accepted, unless it has a rejection or could not be checked."""

    rejection: ArgumentRejection | None = None
    unchecked: str = ""  # the reason why the command line could not be checked
    parsed_only: bool = False  # only the parser ran, without a config.json


def first_rejection(printed: str) -> ArgumentRejection | None:
    """Return the first rejection in the program's output, or None. Raises ValueError without verdicts."""
    return next((verdict.rejection for verdict in read_verdicts(printed) if verdict.rejection is not None), None)


def is_server(argv: Sequence[str]) -> bool:
    """Return whether a command line starts an sglang server."""
    return MODULE in argv


def server_arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the server's arguments in a command line. Raises ValueError if it starts no sglang server."""
    return tuple(argv[server_module_at(argv) + 1 :])


def server_module_at(argv: Sequence[str]) -> int:
    """Return the index of sglang's module in a command line. Raises ValueError if it starts no sglang server."""
    return list(argv).index(MODULE)


def read_verdicts(printed: str) -> tuple[ArgumentVerdict, ...]:
    """Parse the verdicts in the program's output. Raises ValueError if there are none."""
    try:
        answer = parse_json(printed.splitlines()[-1])
        return tuple(map(_verdict, answer["verdicts"]))
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError("no verdict found in the output") from error


def _verdict(answer: Mapping[str, Any]) -> ArgumentVerdict:
    if rejected := answer.get("rejected"):
        return ArgumentVerdict(rejection=ArgumentRejection(**{**rejected, "options": tuple(rejected["options"])}))
    if reason := answer.get("unchecked"):
        return ArgumentVerdict(unchecked=str(reason))
    return ArgumentVerdict(parsed_only=answer["accepted"] == "parsed")
