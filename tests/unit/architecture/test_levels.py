"""The architecture, held: an import points to a lower level, rooms beside each other stand alone, pure is pure."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from orchestrator.core.paths import data_root
from orchestrator.runtimes import REGISTRY

PACKAGE = data_root() / "orchestrator"
# From the ground up. A room may import the rooms below its level, and no other room of its own level.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("core",),
    ("engine", "profile", "patches", "results"),
    ("plan",),
    ("render",),
    ("monitoring", "rental"),
    ("host", "weights", "environments"),
    ("images", "kernels", "bench", "evals", "sweep", "quantisation"),
    ("runtimes",),
    ("prove", "diagnose", "report"),
    ("commands",),
    ("cli",),
    ("__main__",),
)
# What reads a file, talks to a socket or asks the clock in a room that is otherwise pure.
EDGES = {
    "orchestrator.patches.ledger",
    "orchestrator.engine.flags",
    "orchestrator.engine.client",
    "orchestrator.engine.liveness",
    "orchestrator.engine.health",
}
PURE = ("engine", "profile", "patches", "results", "plan", "render", "monitoring", "rental", "kernels")
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
READS |= {"read_file", "read_model", "write_whole"}  # our own
# How sglang is spoken to and what its log says: paths of its API, the header with its key, fields of its requests,
# counters, options of its launch line, wordings that tell how far a start is. All of it stands in `engine`; a docstring
# may name it.
OF_SGLANG = re.compile(
    r"/v1/|/(?:health|metrics|generate|flush_cache|server_info|model_info)\b(?!\.py)|Bearer|routed_dp_rank"
    r"|\bsglang:\w|Uvicorn running|fired up and ready|server_args=|Load weight|Memory pool end|KV Cache is allocated"
    r"|sglang\.launch_server|--model-path|--tp-size|--dp-size|--ep-size|--enable-dp-attention"
)


def room_of(module: str) -> str:
    return module.removeprefix("orchestrator.").split(".")[0]


def level_of(room: str) -> int:
    return next(level for level, rooms in enumerate(LEVELS) if room in rooms)


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_data" not in path.parts:
            dotted = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            yield dotted.removesuffix(".__init__"), path


MODULES = tuple(modules())


Nodes = tuple[ast.AST, ...]


@cache
def nodes_of(path: Path) -> Nodes:
    """Read and walked once for all that look through it."""
    return nodes_in(path.read_text())


def nodes_in(source: str) -> Nodes:
    """All of it, the module itself first."""
    return tuple(ast.walk(ast.parse(source)))


def module_of(path: Path) -> ast.Module:
    module = nodes_of(path)[0]
    assert isinstance(module, ast.Module)
    return module


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
    """The name of each function and method that is called."""
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", ""))


def test_an_import_points_down() -> None:
    for module, path in MODULES:
        if module == "orchestrator":
            continue
        room = room_of(module)
        for imported in imports(path):
            if not imported.startswith("orchestrator.") or imported == "orchestrator.__version__":
                continue
            other = room_of(imported)
            assert other == room or level_of(other) < level_of(room), f"{module} imports {imported}"


def test_pure_rooms_touch_nothing() -> None:
    """No file, no clock, no environment, no network and no processes, but for the modules that are named."""
    for module, path in [found for found in MODULES if room_of(found[0]) in PURE]:
        if module in EDGES or module.startswith("orchestrator.kernels.disk"):
            continue
        touched = {imported.split(".")[0] for imported in imports(path)} & IMPURE_IMPORTS
        assert not touched, f"{module} imports {sorted(touched)}"
        read = set(calls(path)) & READS
        assert not read, f"{module} calls {sorted(read)}"


def of_a_room(path: Path) -> Iterator[tuple[str, str]]:
    """The module and the name of each import from this package."""
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orchestrator."):
            yield from ((str(node.module), alias.name) for alias in node.names)


def docstring_of(room: str) -> str:
    return ast.get_docstring(module_of(PACKAGE / room / "__init__.py")) or ""


def test_what_another_room_uses_is_shown_by_its_face() -> None:
    """A name in the room's `__init__`, or a module that its docstring names as `module` or `room.module`."""
    for module, path in MODULES:
        for imported, _ in of_a_room(path):
            room, _, inner = imported.removeprefix("orchestrator.").partition(".")
            if inner and room != room_of(module):
                named = {f"`{inner}`", f"`{room}.{inner}`"}
                assert any(each in docstring_of(room) for each in named), f"{module} imports {imported}"


def test_what_a_face_shows_is_used() -> None:
    places = [path for _, path in MODULES] + sorted((PACKAGE.parent / "tests").rglob("*.py"))
    used = {found for path in places for found in of_a_room(path)}
    for module, path in MODULES:
        if path.name == "__init__.py":
            nodes = (node for node in module_of(path).body if isinstance(node, ast.Assign))
            shown = [ast.literal_eval(node.value) for node in nodes if ast.unparse(node.targets[0]) == "__all__"]
            assert not {name for names in shown for name in names if (module, name) not in used}, module


def texts(nodes: Nodes) -> Iterator[str]:
    """Every string in the code that is not a docstring, the fixed parts of f-strings and bytes among them."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(node.body[0].value) for node in nodes if isinstance(node, documented) and _has_doc(node)}
    for node in nodes:
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            if isinstance(node.value, str):
                yield node.value
            elif isinstance(node.value, bytes):
                yield node.value.decode(errors="replace")


def _has_doc(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return ast.get_docstring(node, clean=False) is not None


def spoken_to_sglang(nodes: Nodes) -> list[str]:
    return [text for text in texts(nodes) if OF_SGLANG.search(text)]


def test_only_the_engine_room_knows_how_sglang_is_spoken_to() -> None:
    for module, path in [found for found in MODULES if room_of(found[0]) != "engine"]:
        assert not spoken_to_sglang(nodes_of(path)), f"{module} holds what belongs to `engine`"


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
def test_what_belongs_to_the_engine_room_is_found(source: str) -> None:
    assert spoken_to_sglang(nodes_in(source))


@pytest.mark.parametrize("source", ['"""Asks /health."""', 'p = "profiles/engines/flags/generate.py"', "metrics = 1"])
def test_what_does_not_is_not(source: str) -> None:
    assert not spoken_to_sglang(nodes_in(source))


def test_programs_are_started_in_one_place() -> None:
    for module, path in MODULES:
        if module != "orchestrator.core.subprocesses":
            assert "subprocess" not in imports(path), f"{module} starts programs: use orchestrator.core.subprocesses"


def test_a_module_is_run_where_the_current_folder_shadows_nothing() -> None:
    """`pip` was run without `-P`: a `pip.py` in the folder where the user stood ran in its place.

    sglang is run by the Python of its image, which may know no `-P`: its variable is set instead.
    """
    for module, path in MODULES:
        runs = [node for node in nodes_of(path) if isinstance(node, ast.Constant) and node.value == "-m"]
        assert not runs or module in {"orchestrator.core.subprocesses", "orchestrator.engine.launch"}


def test_the_levels_name_every_room() -> None:
    rooms = {room_of(module) for module, _ in MODULES if module != "orchestrator"}
    assert rooms == {room for level in LEVELS for room in level}


def test_a_class_name_stands_once() -> None:
    """`Order`, `Finding` and `Verdict` stood three and four times, each with another meaning."""
    places: dict[str, list[str]] = {}
    for module, path in MODULES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_files_and_functions_stay_short() -> None:
    for module, path in MODULES:
        text = path.read_text()
        assert text.count("\n") <= 400, f"{module} has more than 400 lines"
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                assert length <= 60, f"{module}.{node.name} has {length} lines"


def decided_by(nodes: Nodes) -> set[str]:
    """The texts that something is compared with, matched against or looked up by."""
    places: list[ast.AST] = []
    for node in nodes:
        if isinstance(node, ast.Compare):
            places += [node.left, *node.comparators]
        elif isinstance(node, ast.match_case):
            places.append(node.pattern)
        elif isinstance(node, ast.Dict):
            places += [key for key in node.keys if key is not None]
    inner = (each for place in places for each in ast.walk(place) if isinstance(each, ast.Constant))
    return {each.value for each in inner if isinstance(each.value, str)}


def test_only_runtimes_tell_one_runtime_from_another() -> None:
    """What differs between them stands in the folder of each; `deploy up` and the rest ask the registry."""
    for module, path in MODULES:
        if room_of(module) not in ("runtimes", "rental"):  # a broker's form has keys of its own, `docker` among them
            assert not set(REGISTRY) & decided_by(nodes_of(path)), f"{module} branches on the name of a runtime"


@pytest.mark.parametrize(
    "source",
    [
        'if plan.runtime == "docker": pass',
        'if plan.runtime in ("docker", "process"): pass',
        'match plan.runtime:\n    case "docker":\n        pass',
        '{"docker": build, "process": install}[plan.runtime]()',
    ],
)
def test_a_branch_on_the_name_of_a_runtime_is_found(source: str) -> None:
    assert "docker" in decided_by(nodes_in(source))


def test_only_the_registry_leads_to_a_runtime() -> None:
    """`deploy cache` reached into the folders of both: a third runtime's caches would have been none."""
    folders = tuple(f"orchestrator.runtimes.{name}" for name in REGISTRY)
    for module, path in [found for found in MODULES if room_of(found[0]) != "runtimes"]:
        found = [imported for imported in imports(path) if imported.startswith(folders)]
        assert not found, f"{module} imports {found}"


def test_a_runtime_does_not_know_another() -> None:
    for module, path in [found for found in MODULES if room_of(found[0]) == "runtimes"]:
        for name in REGISTRY:
            folder = f"orchestrator.runtimes.{name}"
            if not module.startswith(folder) and module != "orchestrator.runtimes":
                found = [imported for imported in imports(path) if imported.startswith(f"{folder}.")]
                assert not found, f"{module} imports {found}"
