"""Print facts about an image as JSON: its sglang, its aiter, and the platform that its torch is built for.

Run with the image's own Python (3.10 or newer) and the standard library only. Packages are located as that Python would
import them, but are not imported.
"""

import ast
import json
from pathlib import Path

from apply_patches import describe, installed


def platform_of(torch: Path) -> dict[str, str] | None:
    """Return the platform in torch's `version.py`, with the evidence; None if it is missing or unknown."""
    file = torch / "version.py"
    if not file.is_file():
        return None
    said: dict[str, object] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign)
            else node.target
            if isinstance(node, ast.AnnAssign)
            else None
        )
        if isinstance(target, ast.Name) and isinstance(getattr(node, "value", None), ast.Constant):
            said[target.id] = node.value.value  # type: ignore[union-attr]
    for name, platform in (("hip", "rocm"), ("cuda", "cuda")):
        if isinstance(said.get(name), str):
            return {"platform": platform, "says": f"{file}: {name} = {said[name]!r}"}
    if {"hip", "cuda"} <= said.keys() and said.get("xpu") is None:
        return {"platform": "cpu", "says": f"{file}: no cuda, no hip"}
    return None


if __name__ == "__main__":
    found = {name: place and describe(place) for name in ("sglang", "aiter") for place in [installed(name)]}
    torch = installed("torch")
    print(json.dumps({**found, "torch": torch and platform_of(torch)}))
