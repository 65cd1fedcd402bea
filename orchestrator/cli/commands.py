"""The table of all commands: what `deploy --help` lists, without importing any of them.

The command `kernels tune` is the function `command` in `orchestrator/cli/kernels/tune.py`, which is imported when its
words are given. The text is the first sentence of its docstring, a test compares the two. `kernels` is a group: it has
no module, and the text is all of its help.
"""

from collections.abc import Iterator, Mapping
from typing import Final

PROGRAM: Final = "deploy"

# By section of the help, in its order.
COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "Prepare": {
        "render": "Render what would be started; needs no GPU, Docker or network.",
        "flags": "Make the table of options that a version of sglang knows.",
        "lock": (
            "Resolve everything of a profile that could move, for `up --locked`: image, checkpoint, patches, "
            "tables, options."
        ),
        "preflight": "Check whether a machine is ready for a profile.",
        "stage": "Download a profile's checkpoint and verify all of it.",
        "build": "Build a profile's image and prove the patches in it.",
        "matrix": (
            "Print the profiles with an image as a GitHub Actions matrix, with the disk space of each build in GiB."
        ),
        "quantise": "Quantise a checkpoint with AMD Quark, shard by shard.",
        "onboard": "Add a model from its checkpoint, an engine from its image, and a profile that fits.",
        "onboard model": "Write a model's file from its checkpoint.",
        "onboard engine": "Write an engine's file, and the table of its options.",
        "onboard profile": "Propose a profile for a model on a node.",
        "kernels": "Tuned MoE kernels: coverage, tables, tuning, use.",
        "kernels coverage": "Show whether a tuned kernel answers each bucket of tokens.",
        "kernels table": "Build the merged table that the server gets, and print its path.",
        "kernels tune": "Run the engine's own tuner for what is missing: aiter's, or sglang's for Triton on CUDA.",
        "kernels log": "Show which keys a log says were found in the tuned table.",
    },
    "Serve": {
        "up": "Bring a profile's server up: stage, build, start, wait, prove.",
        "restart": "Start a server again as it last came up.",
        "rollback": "Bring back the last proven start, with its own plan.",
        "status": "Show what runs.",
        "top": "Watch what a server does: load, latencies, cache, kernels, GPUs.",
        "ask": "Stream one greedy completion of a running server.",
        "logs": "Show a server's log, secrets removed.",
        "smoke": "Prove a running server with the smoke test of `up`.",
        "down": "Stop a server with everything it started.",
        "watch": "Look after servers: start again what has died or hangs, as its profile says.",
        "history": "Show every start: its plan, how it was proven, its best figures, how it ended.",
        "diff": "Set two profiles, locks, runs or results side by side: configuration, image, weights, host, figures.",
        "prune": "Remove old run directories, or caches.",
        "metrics": "Write what Prometheus and Grafana watch a server by: what to scrape, rules, alerts, a dashboard.",
        "diagnose": "Name the first known cause of a failure, with its log lines.",
    },
    "Measure": {
        "bench": "Measure a served model: throughput, latency and the knee.",
        "probe": "Compare a server's log-probabilities with a reference.",
        "eval": "Score a served model with lm-evaluation-harness.",
        "compare": "Set measurements side by side: what differs, and by how much.",
        "report": "Write report.html, report.md and report.json.",
        "reproduce": (
            "Repeat a published measurement: for each of its layouts from preflight to report, as far as it is needed."
        ),
        "sweep": "Find a better configuration by measuring.",
    },
    "Look up": {
        "profiles": "List profiles, and the hardware, models and engines they name.",
        "show": "Show what a profile decides.",
        "schema": "Print the JSON Schema of a profile, or of another kind of file, for editors.",
        "inspect": "Show what an image or a checkpoint holds.",
        "patches": "The ledger of patches, and which of them sources need.",
        "patches list": "List every patch: what it repairs, and where the fix comes from.",
        "patches check": "Tell from their content which patches sources need.",
    },
}
# The words of a command that was renamed, and its words now.
RENAMED: Final[Mapping[str, str]] = {"cache": "prune --caches"}


def commands_below(group: str) -> Iterator[tuple[str, str, str]]:
    """The section, the word and the text of each command of a group, or of the program for ""."""
    for section, commands in COMMANDS.items():
        for words, text in commands.items():
            above, _, word = words.rpartition(" ")
            if above == group:
                yield "Commands" if group else section, word, text


def group_text(words: str) -> str | None:
    """The help of a group of commands; None for a command."""
    found = (commands[words] for commands in COMMANDS.values() if words in commands)
    return next(found, None) if any(commands_below(words)) else None
