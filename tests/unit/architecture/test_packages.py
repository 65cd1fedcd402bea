"""Test the architecture: the imports between packages, which packages are pure, and where side effects may occur."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import Nodes, nodes_in, nodes_of

from orchestrator.core.paths import data_root
from orchestrator.runtimes import REGISTRY

PACKAGE = data_root() / "orchestrator"
# Each package imports only packages listed above it, so there is no cycle.
USES: dict[str, str] = {
    "core": "",
    "engine": "core",
    "patches": "core",
    "profiles": "core",
    "plan": "core engine patches profiles",
    "diagnose": "core engine",
    "hosts": "core engine plan",
    "render": "core engine patches plan",
    "checkpoints": "core engine hosts patches plan render",
    "images": "core engine hosts patches plan render",
    "runs": "core plan render",
    "bench": "core engine hosts plan runs",
    "kernels": "bench checkpoints core engine images plan render runs",
    "runtimes": "checkpoints core engine hosts images kernels patches plan profiles render runs",
    "planner": "checkpoints core engine hosts images kernels patches plan profiles render runs runtimes",
    "verify": "core engine plan profiles runtimes",
    "evals": "bench core engine hosts plan planner runs verify",
    "servers": "bench checkpoints core diagnose engine evals hosts images kernels patches plan planner render runs"
    " runtimes verify",
    "monitoring": "bench core engine plan planner render runs runtimes servers",
    "report": "bench checkpoints core engine evals plan planner profiles runs runtimes servers",
    "experiments": "bench core engine evals kernels plan planner profiles report runs runtimes servers",
    "cli": "bench checkpoints core diagnose evals experiments hosts images kernels monitoring patches plan planner"
    " profiles render report runs runtimes servers verify",
    "__main__": "cli core",
}
# Modules of a pure package that may read files, use sockets or read the clock.
EDGES = {
    "orchestrator.patches.ledger",
    "orchestrator.engine.flags",
    "orchestrator.engine.client",
    "orchestrator.engine.drain",
    "orchestrator.engine.first_sample",
    "orchestrator.engine.liveness",
    "orchestrator.engine.health",
}
PURE = ("engine", "profiles", "patches", "plan", "render")
IMPURE_IMPORTS = {"os", "subprocess", "socket", "time", "httpx", "docker", "datetime", "random", "tempfile", "shutil"}
READS = {
    "read_text",
    "read_bytes",
    "write_text",
    "write_bytes",
    "open",
    "is_file",
    "is_dir",
    "exists",
    "iterdir",
    "glob",
}
READS |= {"read_entry", "read_file", "read_model", "write_whole"}  # of the project
# The protocol of sglang belongs to `engine`: API paths, the header with the key, request fields, counters, launch
# options and log lines. Docstrings may name it.
SGLANG_PROTOCOL = re.compile(
    r"/v1/|/(?:health|metrics|generate|flush_cache|server_info|model_info)\b(?!\.py)|Bearer|routed_dp_rank"
    r"|\bsglang:\w|Uvicorn running|fired up and ready|server_args=|Load weight|Memory pool end|KV Cache is allocated"
    r"|sglang\.launch_server|--model-path|--tp-size|--dp-size|--ep-size|--enable-dp-attention"
)


def package_of(module: str) -> str:
    return module.removeprefix("orchestrator.").split(".")[0]


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_data" not in path.parts:
            dotted = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            yield dotted.removesuffix(".__init__"), path


MODULES = tuple(modules())


def imports(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "orchestrator":
                yield from (f"orchestrator.{alias.name}" for alias in node.names)
            else:
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def calls(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", ""))


def imported_packages(package: str) -> set[str]:
    """Return the packages that the modules of a package import, at the top or inside a function."""
    packages = {
        package_of(imported)
        for module, path in MODULES
        if package_of(module) == package and module != "orchestrator"
        for imported in imports(path)
        if imported.startswith("orchestrator.") and imported != "orchestrator.__version__"
    }
    return packages - {package}


def test_the_table_lists_every_package() -> None:
    assert set(USES) == {package_of(module) for module, _ in MODULES if module != "orchestrator"}


@pytest.mark.parametrize("package", USES)
def test_package_imports_match_table(package: str) -> None:
    assert imported_packages(package) == set(USES[package].split())


def test_packages_form_no_cycle() -> None:
    names = list(USES)
    for package, used in USES.items():
        for other in used.split():
            assert names.index(other) < names.index(package), f"`{package}` uses `{other}`, which is listed below it"


def test_pure_packages_have_no_side_effects() -> None:
    for module, path in MODULES:
        if package_of(module) not in PURE or module in EDGES:
            continue
        touched = {imported.split(".")[0] for imported in imports(path)} & IMPURE_IMPORTS
        assert not touched, f"{module} imports {sorted(touched)}"
        read = set(calls(path)) & READS
        assert not read, f"{module} calls {sorted(read)}"


def texts(nodes: Nodes) -> Iterator[str]:
    """Yield each string and bytes literal that is not a docstring, with the fixed parts of f-strings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(node.body[0].value) for node in nodes if isinstance(node, documented) and _has_doc(node)}  # type: ignore[attr-defined]
    for node in nodes:
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            if isinstance(node.value, str):
                yield node.value
            elif isinstance(node.value, bytes):
                yield node.value.decode(errors="replace")


def _has_doc(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return ast.get_docstring(node, clean=False) is not None


def sglang_strings(nodes: Nodes) -> list[str]:
    return [text for text in texts(nodes) if SGLANG_PROTOCOL.search(text)]


def test_only_engine_package_contains_sglang_protocol() -> None:
    for module, path in MODULES:
        if package_of(module) != "engine":
            assert not sglang_strings(nodes_of(path)), f"{module} contains strings that belong to `engine`"


@pytest.mark.parametrize(
    "source",
    [
        'client.get("/v1/models")',
        'url = f"{base}/health"',
        'PATH = b"/generate"',
        'headers = {"Authorization": f"Bearer {key}"}',
        're.compile("Uvicorn running on")',
        'name = "sglang:num_queue_reqs"',
        'argv = ["--tp-size", "8"]',
    ],
)
def test_sglang_protocol_strings_are_detected(source: str) -> None:
    assert sglang_strings(nodes_in(source))


@pytest.mark.parametrize("source", ['"""Asks /health."""', 'p = "profiles/engines/flags/generate.py"', "metrics = 1"])
def test_other_strings_are_not_taken_for_sglang_protocol(source: str) -> None:
    assert not sglang_strings(nodes_in(source))


def test_only_subprocesses_module_starts_programs() -> None:
    for module, path in MODULES:
        if module != "orchestrator.core.subprocesses":
            assert "subprocess" not in imports(path), f"{module} starts programs: use orchestrator.core.subprocesses"


def test_python_modules_run_isolated_from_current_directory() -> None:
    """Without `-P`, `pip` once imported a `pip.py` from the user's current directory.

    The Python of an image may not support `-P`, so `engine.launch` sets the environment variable instead.
    """
    for module, path in MODULES:
        runs = [node for node in nodes_of(path) if isinstance(node, ast.Constant) and node.value == "-m"]
        assert not runs or module in {"orchestrator.core.subprocesses", "orchestrator.engine.launch"}


def test_class_names_are_unique() -> None:
    """`Order`, `Finding` and `Verdict` once existed three or four times with different meanings."""
    defined_in: dict[str, list[str]] = {}
    for module, path in MODULES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                defined_in.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in defined_in.items() if len(modules) > 1}


def test_files_and_functions_stay_short() -> None:
    for module, path in MODULES:
        text = path.read_text()
        assert text.count("\n") <= 400, f"{module} has more than 400 lines"
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                assert length <= 60, f"{module}.{node.name} has {length} lines"


def branch_texts(nodes: Nodes) -> set[str]:
    """Return the texts that a value is compared with, matched against or looked up by."""
    compared: list[ast.AST] = []
    for node in nodes:
        if isinstance(node, ast.Compare):
            compared += [node.left, *node.comparators]
        elif isinstance(node, ast.match_case):
            compared.append(node.pattern)
        elif isinstance(node, ast.Dict):
            compared += [key for key in node.keys if key is not None]
    inner = (item for compared_node in compared for item in ast.walk(compared_node) if isinstance(item, ast.Constant))
    return {item.value for item in inner if isinstance(item.value, str)}


def test_only_runtimes_package_branches_on_runtime_name() -> None:
    for module, path in MODULES:
        if package_of(module) not in ("runtimes", "render"):  # launcher files have a key `docker`
            assert not set(REGISTRY) & branch_texts(nodes_of(path)), f"{module} branches on the name of a runtime"


@pytest.mark.parametrize(
    "source",
    [
        'if plan.runtime == "docker": pass',
        'if plan.runtime in ("docker", "process"): pass',
        'match plan.runtime:\n    case "docker":\n        pass',
        '{"docker": build, "process": install}[plan.runtime]()',
    ],
)
def test_branch_on_runtime_name_is_detected(source: str) -> None:
    assert "docker" in branch_texts(nodes_in(source))


def test_runtimes_are_accessed_only_through_registry() -> None:
    """Code that reads the folders of two runtimes would miss the caches of a third."""
    folders = tuple(f"orchestrator.runtimes.{name}" for name in REGISTRY)
    for module, path in MODULES:
        if package_of(module) != "runtimes":
            forbidden = [imported for imported in imports(path) if imported.startswith(folders)]
            assert not forbidden, f"{module} imports {forbidden}"


def test_runtimes_do_not_import_each_other() -> None:
    for module, path in [item for item in MODULES if package_of(item[0]) == "runtimes"]:
        for name in REGISTRY:
            folder = f"orchestrator.runtimes.{name}"
            if not module.startswith(folder) and module != "orchestrator.runtimes":
                forbidden = [imported for imported in imports(path) if imported.startswith(f"{folder}.")]
                assert not forbidden, f"{module} imports {forbidden}"
