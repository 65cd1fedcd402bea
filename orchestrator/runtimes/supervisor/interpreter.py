"""Preflight checks of the interpreter with the engine; a rented pod's own interpreter depends on its image."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from orchestrator.core.paths import Home
from orchestrator.core.text import parse_json
from orchestrator.hosts.context import CheckContext
from orchestrator.hosts.gpu_checks import carries
from orchestrator.hosts.gpus import VENDORS
from orchestrator.hosts.report import Finding, fail, info, info_if, warn
from orchestrator.hosts.venvs.venv import built_interpreter
from orchestrator.plan.plan import Plan

# Read versions without importing: torch alone takes seconds, and sglang needs a GPU.
_ASK: Final = """
import importlib.metadata as metadata, importlib.util as util, json, os, platform, runpy
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
names = ("sglang", "sglang-kernel", "flashinfer-python", "triton", "transformers")
spec = util.find_spec("torch")
torch = runpy.run_path(os.path.join(os.path.dirname(spec.origin), "version.py")) if spec and spec.origin else {}
built = {"torch": torch.get("__version__"), "cuda": torch.get("cuda"), "hip": torch.get("hip")}
print(json.dumps({"python": platform.python_version(), **built, **{name: version(name) for name in names}}))
"""
_NVCC: Final = 'command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"'
_TOOLKIT: Final = {"nvidia": "cuda", "amd": "hip"}  # torch's names for the toolkits


def interpreter_argv(plan: Plan, home: Home) -> Sequence[str] | None:
    """Return the command that starts the plan's interpreter with its environment; None if it has not been built."""
    python = built_interpreter(plan.engine, home)
    return None if python is None else ("env", *(f"{item.name}={item.value}" for item in plan.env), python)


def interpreter(context: CheckContext) -> Iterator[Finding]:
    """Check that the interpreter runs, with the plan's sglang and a torch that the driver supports."""
    python, engine = context.access.interpreter, context.plan.engine
    if python is None:
        yield info("interpreter", "built by `up`", f"sglang {engine.version}")
        return
    result = context.access.runner((python, "-c", _ASK))
    versions = _versions(result.stdout) if result.ok else None
    if versions is None:
        lines = (result.stderr or result.stdout).strip().splitlines()
        last = f": {lines[-1][:200]}" if lines else ""
        value = f"`{python}` {'is not a Python' if result.ok else 'does not run'}{last}"
        yield fail("interpreter", value, "a Python that has sglang", "choose another: `--set engine.python=PATH`")
        return
    text = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    hint = "the plan is for another version: `--set engine.version=…`, or choose another interpreter"
    same = versions["sglang"] == engine.version
    yield info_if(same, fail, "interpreter", text, f"sglang {engine.version}", hint)
    yield from _torch(context, versions)


def _versions(printed: str) -> Mapping[str, str | None] | None:
    """Parse the last line of the output; None if it has another form."""
    try:
        answer = parse_json(printed.splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return answer if isinstance(answer, dict) and {"sglang", "torch", "cuda", "hip"} <= answer.keys() else None


def compiler(context: CheckContext) -> Iterator[Finding]:
    """Check for `nvcc`: flashinfer compiles its sampling kernels at their first use."""
    if context.plan.hardware.vendor != "nvidia":
        return
    path = context.access.runner(("sh", "-c", _NVCC)).stdout.strip().rpartition("\n")[2]
    value, needed = path or "neither on the PATH nor in CUDA_HOME", "to compile kernels at their first use"
    yield info_if(bool(path), warn, "nvcc", value, needed, "install the CUDA toolkit, or `export CUDA_HOME=…`")


def _torch(context: CheckContext, versions: Mapping[str, str | None]) -> Iterator[Finding]:
    """Check that torch is built for the plan's GPUs and supported by their driver."""
    vendor, inventory = context.plan.hardware.vendor, context.inventory
    if versions["torch"] is None:
        hint = "install sglang with its dependencies into this interpreter, or choose another"
        yield fail("torch", "none", "torch", hint)
    elif vendor in _TOOLKIT:
        toolkit, built = VENDORS[vendor].toolkit, versions[_TOOLKIT[vendor]]
        carried = inventory.toolkit if inventory else None
        value = f"torch {versions['torch']} for {toolkit} {built}" if built else f"torch {versions['torch']}"
        needed = f"{toolkit}, at most {carried}" if carried else toolkit
        if built is None:
            yield fail("torch", f"{value}, without {toolkit}", needed, f"install a torch for {toolkit}")
        elif carried is not None and not carries(vendor, carried, ".".join(built.split(".")[:2])):
            hint = f"install a driver for {toolkit} {built}, or a torch for {toolkit} {carried}"
            yield fail("torch", value, needed, hint)
        else:
            yield info("torch", value, needed)
