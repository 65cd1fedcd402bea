"""Tell which patches the sources need, apply them, prove them.

It runs on the image's own Python (3.10 or newer) with the standard library alone, and answers
`deploy patches check` for a wheel, a directory and an image with the same code:

    check   print the state of every patch, change nothing
    apply   apply what is needed, remove stale bytecode, write the receipt
    verify  look again at what the receipt claims, and print it

The manifest (JSON) lists patches as their patch.yaml has them, a diff with its text. Sources are the packages `sglang`
and `aiter`, where Python would import them from or where --root says.
"""

import argparse
import hashlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Patch = dict[str, Any]  # one folder under patches/, validated when the manifest was made
Roots = dict[str, Path]  # whose sources -> where they are
Hunk = tuple[int, str, str]  # line in the old file, old text, new text

MANIFEST = "/opt/deploy/patches/manifest.json"
RECEIPT = "/opt/deploy/receipt.json"

NEEDED = "needed"
PRESENT = "present upstream"
NOT_APPLICABLE = "not applicable"
CONFLICT = "conflict"
APPLIED = "applied"
AT_START = "acts at start"  # needed, and not a matter of the image: an overlay of the checkpoint, a variable

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class Refusal(Exception):  # noqa: N818 - not an error of ours: the sources refuse the patch
    """A patch that cannot be applied or verified."""


def find(root: Path, name: str) -> Path | None:
    """The file of a probe: a path below `root`, or, for a bare name, the one file of that name anywhere below."""
    if "/" in name:
        return root / name if (root / name).is_file() else None
    found = sorted(root.rglob(name))
    if len(found) > 1:
        raise Refusal(f"`{name}` stands in {len(found)} places below {root}")
    return found[0] if found else None


def match(root: Path, probe: dict[str, str]) -> str | None:
    """`path:line: text` of the first match of a probe."""
    path = find(root, probe["file"])
    if path is None:
        return None
    text = path.read_text(encoding="utf-8")
    hit = re.search(probe["match"], text, re.MULTILINE)
    if hit is None:
        return None
    line = text.count("\n", 0, hit.start()) + 1
    return f"{path.relative_to(root).as_posix()}:{line}: {text.splitlines()[line - 1].strip()}"


def state_of(patch: Patch, roots: Roots) -> tuple[str, list[str]]:
    """The state of one patch by content, and the evidence: `path:line: text`, or what was looked for in vain."""
    root = roots.get(patch["sources"])
    if root is None or not root.is_dir():
        return NOT_APPLICABLE, [f"no sources of {patch['sources']} here"]
    for probe in patch["detect"]["present"]:
        if evidence := match(root, probe):
            return PRESENT, [evidence]
    probes = patch["detect"]["needed"]
    if missing := [probe["file"] for probe in probes if find(root, probe["file"]) is None]:
        return NOT_APPLICABLE, [f"`{name}` does not exist" for name in missing]
    if vain := [probe for probe in probes if match(root, probe) is None]:
        state = CONFLICT if patch["apply"]["kind"] == "diff" else NOT_APPLICABLE
        return state, [f"`{probe['file']}` has no match for: {probe['match']}" for probe in vain]
    try:
        patched_texts(root, patch.get("diff", ""))
    except Refusal as refusal:
        return CONFLICT, [str(refusal)]
    return NEEDED, [evidence for probe in probes if (evidence := match(root, probe))]


def parse_diff(text: str) -> list[tuple[str, list[Hunk]]]:
    """The files of a unified diff with their hunks, in order."""
    files: list[tuple[str, list[Hunk]]] = []
    lines = iter(text.splitlines(keepends=True))
    for line in lines:
        if line.startswith("+++ "):
            files.append((line[4:].split("\t")[0].strip().partition("/")[2], []))
        elif header := _HUNK.match(line):
            start, before, after = (1 if count is None else int(count) for count in header.groups())
            files[-1][1].append((start, *_hunk_texts(lines, before, after)))
    return files


def _hunk_texts(lines: Iterator[str], before: int, after: int) -> tuple[str, str]:
    """Old and new text of the hunk that `lines` stands in, `before` and `after` lines long."""
    old: list[str] = []
    new: list[str] = []
    while len(old) < before or len(new) < after:
        line = next(lines, "")
        if line[:1] not in {" ", "-", "+"}:
            raise Refusal(f"the diff has {line!r} inside a hunk")
        if line[0] != "+":
            old.append(line[1:])
        if line[0] != "-":
            new.append(line[1:])
    return "".join(old), "".join(new)


def patched_texts(root: Path, diff: str) -> dict[Path, str]:
    """Every file the diff changes, with its text afterwards.

    A hunk has to match to the letter and in exactly one place: there is no fuzz. A file that moved within the sources
    is found by its name.
    """
    texts: dict[Path, str] = {}
    for name, hunks in parse_diff(diff):
        path = find(root, name) or find(root, Path(name).name)
        if path is None:
            raise Refusal(f"`{name}` does not exist below {root}")
        text = path.read_bytes().decode()
        for line, old, new in hunks:
            places = [hit.start() for hit in re.finditer("^" + re.escape(old), text, re.MULTILINE)]
            if len(places) != 1:
                raise Refusal(_misfit(path, line, old, text, len(places)))
            text = text[: places[0]] + new + text[places[0] + len(old) :]
        texts[path] = text
    return texts


def _misfit(path: Path, line: int, old: str, text: str, places: int) -> str:
    near = text.splitlines()[line - 1 : line - 1 + old.count("\n")]
    expected = "".join(f"    | {row}\n" for row in old.splitlines())
    found = "".join(f"    | {row}\n" for row in near)
    return (
        f"`{path}` has the context of the diff {places} times\n"
        f"  expected near line {line}:\n{expected}  found there:\n{found}".rstrip()
    )


def sha256(path: Path) -> str:
    """The hash of a file, hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def bytecode(path: Path) -> list[Path]:
    """What Python may have compiled from `path`; it would win over a source of the same second and size."""
    return list(path.parent.glob(f"__pycache__/{path.stem}.*.pyc"))


def apply_diff(root: Path, diff: str) -> list[dict[str, str | None]]:
    """Apply one diff; the changed files with their hashes."""
    files: list[dict[str, str | None]] = []
    for path, text in patched_texts(root, diff).items():
        before = sha256(path)
        path.write_bytes(text.encode())
        for stale in bytecode(path):
            stale.unlink()
        files.append({"path": str(path), "before": before, "after": sha256(path)})
    return files


def added_file(path: Path) -> list[dict[str, str | None]]:
    """A file that the build copied, with its hash; nothing where it was given none."""
    return [{"path": str(path), "before": None, "after": sha256(path)}] if path.is_file() else []


def apply(manifest: list[Patch], roots: Roots) -> list[dict[str, Any]]:
    """Apply what is needed; one entry of the receipt a patch. Raises Refusal with every diff that fits nowhere."""
    states = {patch["id"]: state_of(patch, roots) for patch in manifest}
    misfits = [
        f"patch `{patch['id']}` neither applies nor is present\n  "
        + "\n  ".join(states[patch["id"]][1])
        + f"\n  upstream: {patch['upstream']}"
        for patch in manifest
        if patch["apply"]["kind"] == "diff" and states[patch["id"]][0] not in {NEEDED, PRESENT}
    ]
    if misfits:
        raise Refusal("\n".join(misfits))
    return [_apply_one(patch, roots, *states[patch["id"]]) for patch in manifest]


def _apply_one(patch: Patch, roots: Roots, state: str, evidence: list[str]) -> dict[str, Any]:
    """One entry of the receipt."""
    files: list[dict[str, str | None]] = []
    act = patch["apply"]
    if state == NEEDED and act["kind"] == "diff":
        files = apply_diff(roots[patch["sources"]], patch["diff"])
        state = APPLIED
    elif state == NEEDED and act["kind"] == "file":
        files = added_file(Path(act["destination"]))
        state = APPLIED if files else NEEDED
        evidence = evidence if files else [f"no `{act['input']}` was given to the build"]
    elif state == NEEDED:
        state = AT_START
    return {
        "id": patch["id"],
        "title": patch["title"],
        "kind": act["kind"],
        "state": state,
        "upstream": patch["upstream"],
        "evidence": evidence,
        "files": files,
    }


def verify(manifest: list[Patch], roots: Roots, receipt: dict[str, Any]) -> None:
    """Raise Refusal unless what was applied is in place, and is what Python imports."""
    applied = {entry["id"]: entry for entry in receipt["patches"] if entry["state"] == APPLIED}
    for patch in manifest:
        if patch["id"] in applied:
            _verify_files(patch["id"], applied[patch["id"]]["files"])
            for probe in patch["verify"]:
                if match(roots[patch["sources"]], probe) is None:
                    raise Refusal(f"patch `{patch['id']}`: `{probe['file']}` has no match for: {probe['match']}")
    imported = installed("sglang")
    if imported is None or imported != roots.get("sglang", Path()).resolve():
        raise Refusal(f"python imports sglang from {imported or 'nowhere'}, the patches went to {roots.get('sglang')}")


def installed(package: str) -> Path | None:
    """Where Python would import a package from; nothing is imported."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]).resolve() if places else None


def _verify_files(patch: str, files: list[dict[str, str]]) -> None:
    for file in files:
        path = Path(file["path"])
        if not path.is_file() or sha256(path) != file["after"]:
            raise Refusal(f"patch `{patch}`: `{path}` is not what was written")
        if bytecode(path):
            raise Refusal(f"patch `{patch}`: stale bytecode of `{path}`")


def describe(root: Path) -> dict[str, str | None] | None:
    """Version and commit of sources, as far as they say."""
    if not root.is_dir():
        return None
    version = root / "_version.py"
    named = re.search(r"^__version__ = .*'(.+)'$", version.read_text(), re.MULTILINE) if version.is_file() else None
    git = ["git", "-c", "safe.directory=*", "-C", str(root), "rev-parse", "HEAD"]
    try:
        commit: str | None = subprocess.check_output(git, stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {"root": str(root), "version": named and named[1], "commit": commit}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["check", "apply", "verify"])
    parser.add_argument("--root", action="append", default=[], metavar="NAME=DIR", help="by default, as installed")
    parser.add_argument("--manifest", default=MANIFEST, help="a file, or - for stdin")
    parser.add_argument("--receipt", type=Path, default=RECEIPT)
    return parser.parse_args()


def main() -> None:
    """Run one verb; what it finds goes to stdout as JSON."""
    arguments = _arguments()
    text = sys.stdin.read() if arguments.manifest == "-" else Path(arguments.manifest).read_text(encoding="utf-8")
    manifest: list[Patch] = json.loads(text)
    roots = {name: place for name in ("sglang", "aiter") if (place := installed(name))}
    roots |= {name: Path(place) for name, _, place in (item.partition("=") for item in arguments.root)}
    if arguments.verb == "check":
        found = [(patch["id"], *state_of(patch, roots)) for patch in manifest]
        print(json.dumps([{"id": name, "state": state, "evidence": lines} for name, state, lines in found], indent=2))
        return
    if arguments.verb == "apply":
        entries = apply(manifest, roots)
        sources = {name: describe(root) for name, root in sorted(roots.items())}
        receipt = {"python": sys.version.split()[0], "sources": sources, "patches": entries}
        arguments.receipt.write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
    receipt = json.loads(arguments.receipt.read_text(encoding="utf-8"))
    verify(manifest, {name: Path(source["root"]) for name, source in receipt["sources"].items() if source}, receipt)
    print(json.dumps(receipt, indent=2))


if __name__ == "__main__":
    try:
        main()
    except Refusal as refusal:
        sys.exit(f"error: {refusal}")
