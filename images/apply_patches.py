"""Detect which patches the sources need, apply them and verify them.

Run with the image's own Python (3.10 or newer) and the standard library only. `deploy patches check` runs the same code
on a wheel, a directory or an image.

    find    print the location, version and commit of the sources that Python would import
    check   print the state of every patch, without changes
    apply   apply the needed patches, remove stale bytecode and write the receipt; with ids, these patches only
    verify  compare the sources with the receipt, and print the receipt

`apply` fails for a patch whose file is missing from the build context, unless ALLOW_UNTUNED is set.

The manifest (JSON) contains the patches as in their patch.yaml, a diff with its text. Sources are the packages `sglang`
and `aiter`, as Python would import them or as given with --root. read_sources.py reads files for the probes.
"""

import argparse
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from read_sources import SourceError, decoded, encoded, find, match, sought

Patch = dict[str, Any]  # one patch.yaml, validated when the manifest was written
Roots = dict[str, Path]  # package -> directory of its sources
Hunk = tuple[int, str, str]  # line in the old file, old text, new text

MANIFEST = "/opt/deploy/patches/manifest.json"
RECEIPT = "/opt/deploy/receipt.json"

NEEDED = "needed"
PRESENT = "upstream"
NOT_APPLICABLE = "not applicable"
CONFLICT = "conflict"
APPLIED = "applied"  # by this program, now or in the base image
AT_START = "applied at startup"  # needed, but not part of the image: a checkpoint overlay or an environment variable

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def state_of(patch: Patch, roots: Roots) -> tuple[str, list[str]]:
    """Return the state of a patch by the sources, and its evidence: `path:line: text`, or the missing matches."""
    root = roots.get(patch["sources"])
    if root is None or not root.is_dir():
        return NOT_APPLICABLE, [f"no sources of {patch['sources']} found"]
    try:
        return _state(patch, root)
    except SourceError as error:
        return CONFLICT, [str(error)]


def _state(patch: Patch, root: Path) -> tuple[str, list[str]]:
    diff = patch.get("diff", "")
    if unmatched_context := [probe for probe in patch["detect"].get("context", ()) if match(root, probe) is None]:
        return NOT_APPLICABLE, [f"`{probe['file']}` has no match for: {sought(probe)}" for probe in unmatched_context]
    for probe in patch["detect"]["present"]:
        if evidence := match(root, probe):
            ours = diff and unpatched_texts(root, diff)
            return (APPLIED, [f"{evidence}, as this diff writes it"]) if ours else (PRESENT, [evidence])
    probes = patch["detect"]["needed"]
    if missing := [probe["file"] for probe in probes if find(root, probe["file"]) is None]:
        return NOT_APPLICABLE, [f"there is no file `{name}`" for name in missing]
    if unmatched := [probe for probe in probes if match(root, probe) is None]:
        state = CONFLICT if patch["apply"]["kind"] in {"diff", "config"} else NOT_APPLICABLE
        return state, [f"`{probe['file']}` has no match for: {sought(probe)}" for probe in unmatched]
    patched_texts(root, diff)
    return NEEDED, [evidence for probe in probes if (evidence := match(root, probe))]


def parse_diff(text: str) -> list[tuple[str, list[Hunk]]]:
    """Parse the files of a unified diff with their hunks, in order."""
    rows: list[str] = []
    for row in io.StringIO(text):  # unlike str.splitlines, ends lines only at a newline
        if row.startswith("\\") and rows:  # "\ No newline at end of file"
            rows[-1] = rows[-1].removesuffix("\n")
        else:
            rows.append(row)
    files: list[tuple[str, list[Hunk]]] = []
    lines = iter(rows)
    for line in lines:
        if line.startswith("+++ "):
            files.append((_relative_path(line[4:].split("\t")[0].strip().partition("/")[2]), []))
        elif header := _HUNK.match(line):
            start, before, after = (1 if count is None else int(count) for count in header.groups())
            files[-1][1].append((start, *_hunk_texts(lines, before, after)))
    return files


def _relative_path(name: str) -> str:
    """Return the path of a file in a diff. Raises SourceError unless it is a relative path below the sources."""
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or not all(parts) or {".", ".."} & {*parts}:
        raise SourceError(f"the diff names {name!r}, not a path below the sources")
    return name


def _hunk_texts(lines: Iterator[str], before: int, after: int) -> tuple[str, str]:
    """Return the old and new text of the next hunk in `lines`; they have `before` and `after` lines."""
    old: list[str] = []
    new: list[str] = []
    while len(old) < before or len(new) < after:
        line = next(lines, "")
        if line[:1] not in {" ", "-", "+"}:
            raise SourceError(f"the diff has {line!r} inside a hunk")
        if line[0] != "+":
            old.append(line[1:])
        if line[0] != "-":
            new.append(line[1:])
    return "".join(old), "".join(new)


def patched_texts(root: Path, diff: str, *, reverse: bool = False) -> dict[Path, str]:
    """Return the new text of each file that a diff changes; with `reverse`, the text before the diff was applied.

    A hunk must match exactly and in exactly one place; there is no fuzz. A file that has moved within the sources is
    found by its name. CRLF line ends are kept. Raises SourceError for a hunk without a match
    or a path outside the sources.
    """
    texts: dict[Path, str] = {}
    for name, hunks in parse_diff(diff):
        path = find(root, name) or find(root, Path(name).name)
        if path is None:
            raise SourceError(f"`{name}` does not exist below {root}")
        if not path.resolve().is_relative_to(root.resolve()):
            raise SourceError(f"`{path}` is a link that leads out of the sources, to `{path.resolve()}`")
        text = decoded(path)
        for line, *sides in hunks:
            old, new = (side.replace("\n", "\r\n") if "\r\n" in text else side for side in sides)
            old, new = (new, old) if reverse else (old, new)
            matches = [hit.start() for hit in re.finditer("^" + re.escape(old), text, re.MULTILINE)]
            if len(matches) != 1:
                raise SourceError(_context_error(path, line, old, text, len(matches)))
            text = text[: matches[0]] + new + text[matches[0] + len(old) :]
        texts[path.resolve()] = text
    return texts


def unpatched_texts(root: Path, diff: str) -> dict[Path, str]:
    """Return the text of each file before this diff was applied; empty if the diff is not applied."""
    try:
        return patched_texts(root, diff, reverse=True)
    except SourceError:
        return {}


def _context_error(path: Path, line: int, old: str, text: str, locations: int) -> str:
    near = text.split("\n")[line - 1 : line - 1 + old.count("\n")]
    expected = "".join(f"    | {row}\n" for row in old.splitlines())
    actual = "".join(f"    | {row}\n" for row in near)
    end = "" if text.endswith("\n") else "\n  the file ends without a newline"
    return (
        f"`{path}` has the context of the diff {locations} times\n"
        f"  expected near line {line}:\n{expected}  found there:\n{actual}".rstrip()
        + end
    )


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def bytecode(path: Path) -> list[Path]:
    """Return the bytecode files of `path`. Python prefers them to a source with the same size and mtime in seconds."""
    return list(path.parent.glob(f"__pycache__/{path.stem}.*.pyc"))


def apply_diff(root: Path, diff: str) -> list[dict[str, str | None]]:
    """Apply one diff; return the changed files with their hashes."""
    files: list[dict[str, str | None]] = []
    for path, text in patched_texts(root, diff).items():
        before = sha256(path)
        _replace(path, encoded(text))
        for stale in bytecode(path):
            stale.unlink()
        files.append({"path": str(path), "before": before, "after": sha256(path)})
    return files


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically; hard links to the old file keep its content."""
    temporary = path.with_name(f".{path.name}.patched")
    try:
        temporary.write_bytes(content)
        shutil.copymode(path, temporary)
        temporary.replace(path)
    except OSError as error:
        raise SourceError(f"cannot write `{path}`: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def applied_before(root: Path, diff: str) -> list[dict[str, str | None]]:
    """Return the files in which this diff is already applied, with their hashes before and after."""
    return [
        {"path": str(path), "before": hashlib.sha256(encoded(text)).hexdigest(), "after": sha256(path)}
        for path, text in unpatched_texts(root, diff).items()
    ]


def added_file(path: Path) -> list[dict[str, str | None]]:
    """Return the file that the build copied, with its hash; empty if the file does not exist."""
    return [{"path": str(path), "before": None, "after": sha256(path)}] if path.is_file() else []


def apply(manifest: list[Patch], roots: Roots) -> list[dict[str, Any]]:
    """Apply the needed patches; return one receipt entry for each patch.

    Raises SourceError with all expected patches that neither apply nor are present.
    """
    states = {patch["id"]: state_of(patch, roots) for patch in manifest}
    conflicts = [
        f"patch `{patch['id']}` neither applies nor is present\n  "
        + "\n  ".join(states[patch["id"]][1])
        + f"\n  upstream: {patch['upstream']}"
        for patch in manifest
        if patch.get("expected", True)
        and (
            states[patch["id"]][0] == CONFLICT
            or (patch["apply"]["kind"] == "diff" and states[patch["id"]][0] == NOT_APPLICABLE)
        )
    ]
    if conflicts:
        raise SourceError("\n".join(conflicts))
    return [_apply_one(patch, roots, *states[patch["id"]]) for patch in manifest]


def _apply_one(patch: Patch, roots: Roots, state: str, evidence: list[str]) -> dict[str, Any]:
    """Apply one patch if it is needed; return its receipt entry."""
    files: list[dict[str, str | None]] = []
    act = patch["apply"]
    if state == NEEDED and act["kind"] == "diff":
        try:
            files = apply_diff(roots[patch["sources"]], patch["diff"])
        except SourceError as error:
            raise SourceError(f"patch `{patch['id']}` cannot be applied\n  {error}") from error
        state = APPLIED
    elif state == APPLIED:
        files = applied_before(roots[patch["sources"]], patch["diff"])
    elif state == NEEDED and act["kind"] == "file":
        files = added_file(Path(act["destination"]))
        missing = f"no `{act['input']}` was given to the build"
        if not files and not os.environ.get("ALLOW_UNTUNED"):
            raise SourceError(f"patch `{patch['id']}` cannot be applied: {missing}\n  {patch.get('hint', '')}".rstrip())
        state, evidence = (APPLIED, evidence) if files else (NEEDED, [missing])
    elif state == NEEDED:
        state = AT_START
    return {
        "id": patch["id"],
        "title": patch["title"],
        "kind": act["kind"],
        "state": state,
        "digest": patch.get("digest", ""),
        "upstream": patch["upstream"],
        "evidence": evidence,
        "files": files,
    }


def verify(manifest: list[Patch], roots: Roots, receipt: dict[str, Any]) -> None:
    """Raise SourceError unless the applied patches are in place and Python imports the patched sources."""
    applied = {entry["id"]: entry for entry in receipt["patches"] if entry["state"] == APPLIED}
    for patch in manifest:
        if patch["id"] in applied:
            _verify_files(patch["id"], applied[patch["id"]]["files"])
            for probe in patch["verify"]:
                if match(roots[patch["sources"]], probe) is None:
                    raise SourceError(f"patch `{patch['id']}`: `{probe['file']}` has no match for: {sought(probe)}")
    imported = installed("sglang")
    if imported is None or imported != roots.get("sglang", Path()).resolve():
        raise SourceError(
            f"Python imports sglang from {imported or 'nowhere'}, but the patched sources are in {roots.get('sglang')}"
        )


def installed(package: str) -> Path | None:
    """Return the directory of a package as Python would import it, without an import; None if there is none."""
    spec = importlib.util.find_spec(package)
    directories = list(spec.submodule_search_locations or ()) if spec else []
    return Path(directories[0]).resolve() if directories else None


def _verify_files(patch: str, files: list[dict[str, str]]) -> None:
    for file in files:
        path = Path(file["path"])
        if not path.is_file() or sha256(path) != file["after"]:
            raise SourceError(f"patch `{patch}`: `{path}` has changed since it was patched")
        if bytecode(path):
            raise SourceError(f"patch `{patch}`: stale bytecode of `{path}`")


def describe(root: Path) -> dict[str, str | None] | None:
    """Return the directory, version and commit of sources; None if the directory does not exist."""
    if not root.is_dir():
        return None
    version = root / "_version.py"
    version_match = (
        re.search(r"^__version__ = .*'(.+)'$", decoded(version), re.MULTILINE) if version.is_file() else None
    )
    git = ["git", "-c", "safe.directory=*", "-C", str(root), "rev-parse", "HEAD"]
    try:
        commit: str | None = subprocess.check_output(git, stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {"root": str(root), "version": version_match and version_match[1], "commit": commit}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["find", "check", "apply", "verify"])
    parser.add_argument("ids", nargs="*", metavar="ID", help="patches to apply, by default all of the manifest")
    parser.add_argument("--root", action="append", default=[], metavar="NAME=DIR", help="by default, as installed")
    parser.add_argument("--manifest", default=MANIFEST, help="a file, or - for stdin")
    parser.add_argument("--receipt", type=Path, default=Path(RECEIPT))
    return parser.parse_args()


def _recorded(arguments: argparse.Namespace, manifest: list[Patch]) -> dict[str, dict[str, Any]]:
    """Return the receipt entries of earlier build steps, by patch id; empty without ids."""
    if not arguments.ids or not arguments.receipt.is_file():
        return {}
    entries = json.loads(arguments.receipt.read_text(encoding="utf-8"))["patches"]
    known = {patch["id"] for patch in manifest}  # the receipt of the base image may have other patches
    return {entry["id"]: entry for entry in entries if entry["id"] in known}


def main() -> None:
    """Run one verb and print its result as JSON."""
    arguments = _arguments()
    roots = {name: path for name in ("sglang", "aiter") if (path := installed(name))}
    if arguments.verb == "find":
        print(json.dumps({name: describe(root) for name, root in roots.items()}))
        return
    text = sys.stdin.read() if arguments.manifest == "-" else Path(arguments.manifest).read_text(encoding="utf-8")
    manifest: list[Patch] = json.loads(text)
    roots |= {name: Path(path) for name, _, path in (item.partition("=") for item in arguments.root)}
    if arguments.verb == "check":
        states = [(patch["id"], *state_of(patch, roots)) for patch in manifest]
        print(json.dumps([{"id": name, "state": state, "evidence": lines} for name, state, lines in states], indent=2))
        return
    if arguments.verb == "apply":
        chosen = [patch for patch in manifest if not arguments.ids or patch["id"] in arguments.ids]
        entries = {**_recorded(arguments, manifest), **{entry["id"]: entry for entry in apply(chosen, roots)}}
        sources = {name: describe(root) for name, root in sorted(roots.items())}
        receipt = {"python": sys.version.split()[0], "sources": sources, "patches": [*entries.values()]}
        arguments.receipt.write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
    receipt = json.loads(arguments.receipt.read_text(encoding="utf-8"))
    verify(manifest, {name: Path(source["root"]) for name, source in receipt["sources"].items() if source}, receipt)
    print(json.dumps(receipt, indent=2))


if __name__ == "__main__":
    try:
        main()
    except (SourceError, OSError) as error:
        sys.exit(f"error: {error}")
