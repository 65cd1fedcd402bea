"""Build a fake ROCm image from this machine's packages, without a registry.

It has the paths of the real image (`/sgl-workspace/sglang/python/sglang`, a git repository; `/sgl-workspace/aiter`),
the sources of a sglang wheel, and Debian's Python, git and shell, but not the other packages that sglang imports. With
the site-packages of the CPU engine mounted at `ENGINE_PACKAGES`, a container serves real sglang from those sources.
`engine_image` contains these packages.
"""

import hashlib
import io
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

ENGINE_PACKAGES = "/opt/engine/site-packages"
PACKAGE = "/sgl-workspace/sglang/python/sglang"
AITER = "/sgl-workspace/aiter/aiter"
COMMIT = "5ca1ab1e" * 5

SEED = (
    "python3",
    "git",
    "bash",
    "dash",
    "coreutils",
    "sed",
    "grep",
    "libgomp1",
    "libnuma1",
    "libstdc++6",
    "util-linux",
    "ca-certificates",
)
MOONCAKE = ("libibverbs1", "librdmacm1", "libnl-3-200", "libnl-route-3-200", "libcurl4")  # libraries that it loads
_EXCLUDED = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/perl", "/usr/share/git-core/")
_UNUSED = ("sglang", "pip", "torch/include", "torch/share")

# A .pth file for Debian's Python: the image's own sources come first, then the mounted packages with their .pth files.
_PATHS = f"/sgl-workspace/sglang/python\n/sgl-workspace/aiter\nimport site; site.addsitedir('{ENGINE_PACKAGES}')\n"

_TAG = Path("/usr/bin/python3").resolve().name.replace("python", "cpython-").replace(".", "")  # in names of .pyc
_SUPPORT = Path(__file__).parent
_FORKED = (_SUPPORT / "forked_ranks/sitecustomize.py").read_bytes()
_LAUNCHER = b"""
import runpy, sys
from pathlib import Path
sys.argv = [str(Path(__file__).with_name("scripted_engine.py")), "-m", "sglang.launch_server", *sys.argv[1:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# Only the line from which `deploy` sees that aiter reads the variable.
_AITER = {"__init__.py": b"", "jit/core.py": b'AITER_CONFIG_FMOE = os.getenv("AITER_CONFIG_FMOE", default)\n'}


def base_image(wheel: Path, *, replaced: Mapping[str, bytes] | None = None, docker: str = "docker") -> str:
    """Return the tag of an image with the sources of `wheel`; `replaced` changes or adds files.

    The image is built once (4 s, 200 MB); its tag is a digest of its contents.
    """
    packages = closure(SEED)
    changes = (f"{name}={hashlib.sha256(data).hexdigest()}" for name, data in (replaced or {}).items())

    def fill(tar: tarfile.TarFile) -> None:
        add_system(tar, packages)
        _add_wheel(tar, wheel, replaced or {})
        _add_paths(tar)

    return _imported("deploy-fake/rocm", [wheel.name, *packages, *changes], fill, docker=docker)


def scripted_sources() -> dict[str, bytes]:
    """Return the files of a sglang package whose server is the scripted engine."""
    engine = {
        name: (_SUPPORT / name).read_bytes() for name in ("scripted_engine.py", "engine_process.py", "engine_api.py")
    }
    return {"__init__.py": b"\n", "launch_server.py": _LAUNCHER, **engine}


def engine_image(packages: Path, *, docker: str = "docker") -> str:
    """Return the tag of an image that contains the site-packages of an engine environment.

    sglang is at the path of the ROCm image. The image is built once for each requirement digest (1.6 GB).
    """
    system, environment = closure(SEED), packages.resolve().parents[2].name

    def fill(tar: tarfile.TarFile) -> None:
        add_system(tar, system)
        tar.add(packages / "sglang", arcname=PACKAGE.lstrip("/"))
        tar.add(packages, arcname=ENGINE_PACKAGES.lstrip("/"), filter=_is_used)
        _add_paths(tar)
        add_forked_ranks(tar)

    forked = hashlib.sha256(_FORKED).hexdigest()
    return _imported("deploy-fake/engine", [environment, forked, *_UNUSED, *system], fill, docker=docker)


def packages_of(python: Path) -> Path:
    """Return the site-packages of an engine environment, for the Python of the image."""
    folder = python.parent.parent / "lib" / debian_python() / "site-packages"
    if not folder.is_dir():
        pytest.skip(f"the engine's Python is not that of this machine, {debian_python()}, which the fake image has")
    return folder


def debian_python() -> str:
    """Return the name of Debian's Python, such as `python3.11`."""
    return Path("/usr/bin/python3").resolve().name


def _is_used(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Filter out what a server does not import: the second copy of sglang, and torch's headers."""
    inside = entry.name.removeprefix(f"{ENGINE_PACKAGES}/".lstrip("/"))
    return None if inside in _UNUSED else entry


def _imported(repository: str, contents: list[str], fill: Callable[[tarfile.TarFile], None], *, docker: str) -> str:
    """Return the tag of the image with these contents; import the tar that `fill` writes if the image is missing."""
    key = chr(10).join(sorted([*contents, _TAG]))
    tag = f"{repository}:{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if subprocess.run([docker, "image", "inspect", tag], capture_output=True, check=False).returncode == 0:
        return tag
    path = "ENV PATH=/usr/local/bin:/usr/bin:/usr/sbin"
    with subprocess.Popen(
        [docker, "import", "--change", path, "-", tag], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        with tarfile.open(fileobj=process.stdin, mode="w|") as tar:
            fill(tar)
    assert process.returncode == 0, "docker import failed"
    return tag


def add_system(tar: tarfile.TarFile, packages: list[str]) -> None:
    for name in ("bin", "sbin", "lib", "lib64"):
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
        tar.addfile(entry)
    for name, mode in (("tmp", 0o1777), ("root", 0o700), ("proc", 0o555), ("sys", 0o555), ("dev", 0o755)):
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        tar.addfile(entry)
    add_file(tar, "/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
    add_file(tar, "/etc/group", b"root:x:0:\n")
    for path in files_of(packages):
        tar.add(path, arcname=path.lstrip("/"), recursive=False)


def _add_wheel(tar: tarfile.TarFile, wheel: Path, replaced: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("sglang/") and not name.endswith("/")]
        for inner in dict.fromkeys([*(name.removeprefix("sglang/") for name in names), *replaced]):
            add_file(tar, f"{PACKAGE}/{inner}", replaced.get(inner) or archive.read(f"sglang/{inner}"))


def _add_paths(tar: tarfile.TarFile) -> None:
    """Add aiter, the git repository, and the .pth file."""
    for name, content in _AITER.items():
        add_file(tar, f"{AITER}/{name}", content)
    add_file(tar, f"/usr/local/lib/{debian_python()}/dist-packages/fake_image.pth", _PATHS.encode())
    for name, content in _repository():
        add_file(tar, f"/sgl-workspace/sglang/.git/{name}", content)


def add_forked_ranks(tar: tarfile.TarFile) -> None:
    """Let a server in the image fork its processes. A .pth file, because Debian's Python has a `sitecustomize`."""
    folder = f"/usr/local/lib/{debian_python()}/dist-packages"
    add_file(tar, f"{folder}/forked_ranks.py", _FORKED)
    add_file(tar, f"{folder}/zz_forked_ranks.pth", b"import forked_ranks\n")  # read after fake_image.pth


def _repository() -> Iterator[tuple[str, bytes]]:
    """Yield the files of a git repository with one branch, as the receipt needs it."""
    yield "HEAD", b"ref: refs/heads/main\n"
    yield "refs/heads/main", f"{COMMIT}\n".encode()
    yield "objects/.keep", b""
    yield "config", b"[core]\n\trepositoryformatversion = 0\n"


def add_file(tar: tarfile.TarFile, path: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def closure(seed: tuple[str, ...]) -> list[str]:
    """Return `seed` and the installed packages that it depends on, as `name=version`."""
    listed = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Pre-Depends}, ${Depends}\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    known = {line.split("\t")[0]: line.split("\t")[1:] for line in listed.stdout.splitlines()}
    wanted, versions = list(seed), dict[str, str]()
    while wanted:
        name = wanted.pop()
        if name not in known or name in versions or name.startswith("perl"):
            continue
        versions[name] = known[name][0]
        for alternatives in known[name][1].split(","):
            wanted += [word.split()[0].split(":")[0] for word in alternatives.split("|") if word.strip()]
    return sorted(f"{name}={version}" for name, version in versions.items())


def files_of(packages: list[str]) -> list[str]:
    """Return the files and links of the packages, with resolved directories (/bin is a link to /usr/bin)."""
    names = [package.split("=")[0] for package in packages]
    listed = subprocess.run(
        ["dpkg-query", "-L", *names], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    real = {str(Path(os.path.realpath(Path(path).parent)) / Path(path).name) for path in listed if path.startswith("/")}
    files = {path for path in real if Path(path).parent != Path("/") and not path.startswith(_EXCLUDED)}
    files |= {_compiled(path) for path in files if path.endswith(".py")}
    return sorted(path for path in files if Path(path).is_symlink() or Path(path).is_file())


def _compiled(path: str) -> str:
    """Return the path of a module's .pyc file, which dpkg does not list.

    Without it, each Python in a container compiles its imports: at least 0.2 s of CPU time.
    """
    return f"{Path(path).parent}/__pycache__/{Path(path).stem}.{_TAG}.pyc"
