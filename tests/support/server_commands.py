"""Command lines of servers, for the engine's own parser."""

import json
from collections.abc import Sequence
from pathlib import Path

from draft_model_config import glm_config

from orchestrator.planner.planning import load, render_artifacts


def model_in(folder: Path, **config: object) -> Path:
    """Write a config.json with the heads and context length of GLM-5.2; return the folder."""
    shape = {"max_position_embeddings": 1 << 20, "num_attention_heads": 64, "num_key_value_heads": 64}
    (folder / "config.json").write_text(json.dumps({**glm_config("bf16"), **shape, **config}))
    return folder


def command(profile: str, model: Path, *overrides: str) -> tuple[str, ...]:
    """Return the arguments of a profile's server."""
    rendered = render_artifacts(load(profile, overrides=overrides).plan)
    argv = list(next(iter(rendered.replicas), rendered).command.argv)  # with replicas, `rendered` is the gateway
    argv[argv.index("--model-path") + 1] = str(model)
    return tuple(argv[argv.index("sglang.launch_server") + 1 :])


def with_setting(argv: Sequence[str], setting: str) -> tuple[str, ...]:
    """Return a command line with flags changed as in an override, without the plan's checks."""
    words = list(argv)
    for override in setting.split(" & "):
        name, _, text = override.partition("=")
        option, values = f"--{name}", _values(text)
        if option in words:
            at = words.index(option)
            after = next(
                (location for location in range(at + 1, len(words)) if words[location].startswith("--")), len(words)
            )
            del words[at:after]
        words += [] if values is None else [option, *values]
    return tuple(words)


def _values(text: str) -> list[str] | None:
    if text in {"true", "null"}:
        return [] if text == "true" else None
    if text.startswith("["):
        return [item for item in text[1:-1].split(",") if item]
    return [text]
