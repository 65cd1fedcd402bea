"""The table of all commands, from which `deploy --help` lists them without importing any.

The command `kernels tune` is the function `command` in `orchestrator/cli/kernels/tune.py`, which is imported when the
command is run. Its text is the first sentence of the function's docstring; a test compares the two. `kernels` is a
group: it has no module, and its text is its whole help.

A command passes its options to one function. If several functions need them, or a run saves them to be repeated, it
passes one object, such as `UpRequest` or `SweepRequest`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

PROGRAM: Final = "deploy"

# The commands by section of the help, in the order of the sections.
COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "Common commands": {
        "up": "Start a server from a profile and verify it",
        "down": "Stop a server and free its GPUs",
        "status": "List servers and their health (alias: ps)",
        "logs": "Show or follow the log of a server",
        "smoke": "Run the smoke test against a server",
        "bench": "Measure throughput and latency",
    },
    "Server commands": {
        "restart": "Restart a server with its last plan",
        "rollback": "Return a server to its last known good run",
        "watch": "Restart servers that die or hang",
        "top": "Show load, latency, cache and GPU use live",
        "ask": "Send one prompt and stream the completion",
        "diagnose": "Find the cause of a failure in a log",
        "history": "List past runs and their results",
        "prune": "Remove old run directories or caches",
    },
    "Preparation commands": {
        "profiles": "List profiles, hardware, models and engines",
        "show": "Show the plan that a profile resolves to",
        "diff": "Compare two profiles, locks, runs or results",
        "lock": "Pin image, checkpoint, patches and tables",
        "render": "Write the files that `up` would start",
        "preflight": "Check that a host is ready for a profile",
        "stage": "Download and verify a checkpoint",
        "build": "Build a patched image",
        "inspect": "Show what an image or a checkpoint contains",
    },
    "Measurement commands": {
        "eval": "Score a server on an evaluation suite",
        "logprobs": "Compare log-probabilities with a reference",
        "sweep": "Search for a better configuration",
        "reproduce": "Repeat a published measurement",
        "compare": "Compare results",
        "report": "Write an HTML and JSON report",
    },
    "Management commands": {
        "add": "Add a model, an engine or a profile",
        "add model": "Write a model's catalog entry from its checkpoint",
        "add engine": "Write an engine's catalog entry from a wheel or image",
        "add profile": "Propose a profile for a model on a node",
        "kernels": "Inspect, build and tune MoE kernel tables",
        "kernels coverage": "Show which token counts have a tuned kernel",
        "kernels build": "Build a profile's merged kernel table",
        "kernels tune": "Run aiter's tuner for missing kernels",
        "kernels check": "Find untuned kernels in a log",
        "monitoring": "Write Prometheus rules and a Grafana dashboard",
        "patches": "List patches and check which ones a source tree needs",
        "patches ls": "List patches and their upstream fixes",
        "patches check": "Check which patches a source tree needs",
        "quantize": "Quantize a checkpoint with AMD Quark",
        "schema": "Print a JSON Schema",
    },
}
HIDDEN: Final = frozenset({"schema"})  # neither listed nor completed
ALIASES: Final[Mapping[str, str]] = {"ps": "status"}
# Renamed commands, old name to new name.
RENAMED: Final[Mapping[str, str]] = {
    "cache": "prune --caches",
    "flags": "add engine VERSION --flags-only",
    "kernels log": "kernels check",
    "kernels table": "kernels build",
    "matrix": "profiles --format github-matrix",
    "metrics": "monitoring",
    "onboard": "add",
    "patches list": "patches ls",
    "probe": "logprobs",
    "quantise": "quantize",
}
# Renamed options by command, old name to new name.
_ON: Final = {"--on": "--runtime"}
_UNTUNED: Final = {"--accept-untuned": "--allow-untuned"}
# Keys of a profile that a user may take for options.
PROFILE_KEYS: Final[Mapping[str, str]] = {
    "--dp": "layout.dp",
    "--ep": "layout.ep",
    "--port": "server.port",
    "--replicas": "replicas",
    "--tp": "layout.tp",
    "--workload": "workload",
}
ENDED_BY_HAND: Final = frozenset({"ask", "logs", "status", "top", "watch"})  # Ctrl-C ends them without a message
# Message and hint of the error after Ctrl-C, by command; the default message is "interrupted".
INTERRUPTED: Final[Mapping[str, tuple[str, str]]] = {
    "build": ("interrupted; the build was stopped", "nothing is left running; the same command builds what is missing"),
    "down": ("interrupted", "`deploy status` shows what runs"),
    "quantize": ("interrupted; finished shards are kept", "nothing is left running; the same command continues"),
    "restart": ("interrupted", "`deploy status` shows what runs"),
    "rollback": ("interrupted", "`deploy status` shows what runs"),
    "stage": ("interrupted; downloaded bytes are kept", "nothing is left running; the same command continues"),
    "up": ("interrupted; no server was started", "nothing is left running; the same command skips finished steps"),
}
RENAMED_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "add profile": {"--like": "--base", "--context": "--max-context"},
    "bench": {"--in": "--input-tokens", "--out": "--output-tokens", "--rates": "--request-rate"},
    "build": {"--at-once": "--parallel", "--give": "--input", **_UNTUNED},
    "eval": {"--data": "--dataset"},
    "kernels tune": {"--rekeyed": "--retune-derived"},
    "logprobs": {
        "--against": "--reference",
        "--limit": "--tolerance",
        "--longest": "--max-length",
        "--other-checkpoint": "--allow-other-checkpoint",
    },
    "preflight": _ON,
    "quantize": {"--in": "--profile"},
    "render": {"--give": "--input", "--tool": "--package", **_ON},
    "reproduce": {"--data": "--dataset", "--keep": "--keep-failed", "--weights": "--checkpoint"},
    "show": _ON,
    "smoke": {"--against": "--profile"},
    "stage": {"--accept-differences": "--allow-mismatch", "--at-once": "--parallel"},
    "sweep": {
        "--at": "--at-rate",
        "--confirm": "--repeats",
        "--hours": "--max-hours",
        "--rates": "--request-rate",
        "--trials": "--max-trials",
        "--usd": "--max-cost",
        **_UNTUNED,
    },
    "up": {"--keep": "--keep-failed", "--least-gsm8k": "--min-gsm8k", "--only": "--max-replicas", **_ON, **_UNTUNED},
}


def commands_below(group: str) -> Iterator[tuple[str, str, str]]:
    """Return section, name and help of each command of a group; "" is the top level."""
    for section, commands in COMMANDS.items():
        for words, text in commands.items():
            above, _, word = words.rpartition(" ")
            if above == group:
                yield "Commands" if group else section, word, text


def group_text(words: str) -> str | None:
    """Return the help of a group; None for a command."""
    texts = (commands[words] for commands in COMMANDS.values() if words in commands)
    return next(texts, None) if any(commands_below(words)) else None


def listed_below(group: str) -> Iterator[tuple[str, str, str]]:
    """Return the visible commands of a group."""
    return (item for item in commands_below(group) if f"{group} {item[1]}".lstrip() not in HIDDEN)
