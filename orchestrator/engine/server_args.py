"""What an engine's own `ServerArgs` says of command lines.

`images/check_server_args.py`, run by the engine's Python, asks it, and describes the answer.
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


@dataclass(frozen=True, kw_only=True)
class ArgumentQuestion:
    """Command lines to judge, and the GPUs they are for.

    `files` are the model's texts by name; None: the program looks at the path that the command line names.
    """

    argv: tuple[tuple[str, ...], ...]
    platform: str  # rocm | cuda | cpu
    arch: str
    gpus: int
    vram_bytes: int
    compute_units: int
    model: str
    files: Mapping[str, str] | None

    def to_json(self) -> str:
        """The question as the program reads it; equal questions give equal texts."""
        data = asdict(self)
        files = data.pop("files")
        data["model"] = None if files is None else {"name": self.model, "files": files}
        return json.dumps(data, sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class ArgumentRefusal:
    """Why the engine refuses a command line. `options` are those without any one of which it does not say so."""

    kind: str  # `argparse`, or the class of the exception
    message: str
    place: str  # `server_args.py:123`, in the engine's sources
    line: str  # the text of that line
    options: tuple[str, ...]

    @property
    def text(self) -> str:
        """The engine's message; for an assertion without one, what is asserted."""
        if self.kind == _PARSER:
            return self.message
        said = f"`{self.line}`" if self.message == self.kind and self.line else self.message
        return f"{said} ({self.place})" if self.place else said

    def named_options(self, given: Collection[str]) -> tuple[str, ...]:
        """The options, among those that were `given`, that the refusal is about; empty where none can be named."""
        if found := tuple(name for name in self.options if name in given):
            return found
        for text, pattern in ((self.message, _OPTION), (self.message, _NAME), (self.line, _NAME)):
            names = (name.replace("_", "-") for name in pattern.findall(text))
            if found := tuple(dict.fromkeys(name for name in names if name in given)):
                return found
        return ()

    def keys(self, given: Collection[str]) -> tuple[tuple[str, str], ...]:
        """The keys of a profile that say those options; of several those below `flags`, where there are any."""
        named = self.named_options([name for name in given if name not in PROFILE_KEYS]) or self.named_options(given)
        return tuple(PROFILE_KEYS.get(name, ("flags", name)) for name in named)


@dataclass(frozen=True, kw_only=True)
class ArgumentVerdict:
    """The verdict on one command line: accepted where there is neither a refusal nor a reason for no check."""

    refusal: ArgumentRefusal | None = None
    unchecked: str = ""
    parsed_only: bool = False  # there was no config.json: only the parser was asked


def first_refusal(printed: str) -> ArgumentRefusal | None:
    """The first refusal in what the program printed; None where there is none. Raises ValueError for no answer."""
    return next((verdict.refusal for verdict in read_verdicts(printed) if verdict.refusal is not None), None)


def is_server(argv: Sequence[str]) -> bool:
    """Whether a command line starts a server of sglang."""
    return MODULE in argv


def server_arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """The arguments of the server in a command line that starts it."""
    return tuple(argv[server_module_at(argv) + 1 :])


def server_module_at(argv: Sequence[str]) -> int:
    """Where a command line that starts a server names its module, behind `-m`. Raises ValueError for another one."""
    return list(argv).index(MODULE)


def read_verdicts(printed: str) -> tuple[ArgumentVerdict, ...]:
    """The verdicts in what the program printed. Raises ValueError where that is no answer of it."""
    try:
        answer = parse_json(printed.splitlines()[-1])
        return tuple(map(_verdict, answer["verdicts"]))
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError("no verdict was printed") from error


def _verdict(said: Mapping[str, Any]) -> ArgumentVerdict:
    if refused := said.get("refused"):
        return ArgumentVerdict(refusal=ArgumentRefusal(**{**refused, "options": tuple(refused["options"])}))
    if reason := said.get("unchecked"):
        return ArgumentVerdict(unchecked=str(reason))
    return ArgumentVerdict(parsed_only=said["accepted"] == "parsed")
