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
    values: dict[str, object] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            values[getattr(target, "id", "")] = node.value.value
    for name, platform in (("hip", "rocm"), ("cuda", "cuda")):
        if isinstance(values.get(name), str):
            return {"platform": platform, "evidence": f"{file}: {name} = {values[name]!r}"}
    if {"hip", "cuda"} <= values.keys() and values.get("xpu") is None:
        return {"platform": "cpu", "evidence": f"{file}: no cuda, no hip"}
    return None


if __name__ == "__main__":
    packages = {name: root and describe(root) for name in ("sglang", "aiter") for root in [installed(name)]}
    torch = installed("torch")
    print(json.dumps({**packages, "torch": torch and platform_of(torch)}))
