"""The lock: everything of a start that could move, as it was resolved, and what could not be, with the reason. Pure.

Each section carries its own digest, and a short one of each of its lines, so that what was edited is told by its line.
The plan stands in it by dotted key, without what follows from the rest (descriptions, reports, questions of the smoke
test).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from orchestrator.core.catalog import is_valid_name
from orchestrator.core.errors import Problem, ProfileError, truncate_problems
from orchestrator.core.yaml_document import Document, dump_yaml
from orchestrator.plan.diff import differences, flatten
from orchestrator.plan.plan import Plan

FORMAT: Final = 2
COMMIT: Final = "commit"  # beside the files of a checkpoint
_SHORT: Final = 8  # characters of the digest of a line, which tells where: that of its section tells whether
LOCK_FILE: Final = "lock.yaml"  # how its name ends
_SAID: Final = ("description", "warnings", "nondeterministic", "wrong_answers", "model.questions")
_SECTIONS: Final = ("tool", "profile", "overrides", "checkpoint", "patches", "files", "unknown", "plan")


@dataclass(frozen=True, kw_only=True)
class Lock:
    """What was resolved; digests are sha256 in hex."""

    tool: str  # the version of this tool that wrote it
    profile: str  # a name, or a file as seen from the lock
    overrides: tuple[str, ...]  # `--set`, with what pins the image and the commit
    checkpoint: Mapping[str, str]  # its hub commit; each file's size and what the hub knows its content by
    patches: Mapping[str, str]  # the digest of each
    files: Mapping[str, str]  # the digest of each further file that a start is made from
    unknown: Mapping[str, str]  # what could not be resolved, and why
    plan: Mapping[str, str]  # by dotted key

    @property
    def text(self) -> str:
        """The file."""
        data = _plain(self)
        digests = {name: _digest(data[name]) for name in _SECTIONS}
        lines = {name: " ".join(map(_short_digest, _entries(data[name]).items())) for name in _SECTIONS}
        head = "Written by deploy, and not to be edited: `deploy up --locked` starts exactly this."
        return dump_yaml({"lock": FORMAT, **data, "lines": lines, "digests": digests}, head, width=1_000_000)

    @property
    def told(self) -> dict[str, str]:
        """What it says beside its plan, by dotted key: for who compares it."""
        files = [int(said.split()[0]) for path, said in self.checkpoint.items() if path != COMMIT]
        known = {"commit": self.checkpoint.get(COMMIT, ""), "files": f"{len(files)}, {sum(files)} bytes"}
        checkpoint = known if files else {}
        of = {"patch": self.patches, "file": self.files, "checkpoint": checkpoint, "by": {"deploy": self.tool}}
        return {f"locked.{part}.{key}": text for part, each in of.items() for key, text in each.items()}


def plan_lines(plan: Plan) -> dict[str, str]:
    """A plan by dotted key, as a lock holds it."""
    found = flatten(plan.to_dict())
    return {key: value for key, value in sorted(found.items()) if not key.startswith(_SAID)}


def lock_of(document: Document, tool: str) -> Lock:
    """The lock in a file.

    Raises ProfileError, with the line, for one that was edited, or is of another version of its form or of this tool.
    """
    data, name = document.data, document.name
    if data.get("lock") != FORMAT:
        hint = "`deploy lock PROFILE` writes one"
        raise ProfileError(f"this is no lock of form {FORMAT}", where=document.place(("lock",)), hint=hint)
    if data.get("tool") != tool:
        raise ProfileError(
            f"this lock was written by deploy {data.get('tool')}, and this is deploy {tool}",
            where=document.place(("tool",)),
            hint="`deploy lock PROFILE` writes it anew; `deploy diff LOCK PROFILE` shows what that changes",
        )
    if edited := truncate_problems(_edited(document)):
        hint = "`deploy lock` writes one anew"
        raise ProfileError(f"`{name}` is not as it was written", problems=edited, hint=hint)
    try:
        return _lock(data)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ProfileError("this is no lock", where=name) from error


def _lock(data: Mapping[str, object]) -> Lock:
    known = {name: data[name] for name in _SECTIONS}
    texts = {
        name: {str(key): str(value) for key, value in dict(known[name]).items()}  # type: ignore[call-overload]
        for name in ("checkpoint", "patches", "files", "unknown", "plan")
    }
    if odd := [name for name in texts["files"] if not is_valid_name(name)]:
        raise ValueError(f"`{odd[0]}` is not the name of a file")
    overrides = tuple(str(each) for each in known["overrides"])  # type: ignore[attr-defined]
    return Lock(tool=str(known["tool"]), profile=str(known["profile"]), overrides=overrides, **texts)


def _edited(document: Document) -> Iterator[Problem]:
    digests = document.data.get("digests")
    digests = digests if isinstance(digests, dict) else {}
    for name in _SECTIONS:
        if name not in document.data:
            yield Problem(f"`{name}` is missing", document.name)
        elif _digest(document.data[name]) != digests.get(name):
            yield from _edited_lines(document, name)
    for name in sorted({*document.data} - {*_SECTIONS, "lock", "digests", "lines"}):
        yield Problem(f"`{name}` was added", document.place((name,)))


def _edited_lines(document: Document, section: str) -> Iterator[Problem]:
    """The lines of a section that are not as they were written; the section, where none of those there is another."""
    written, entries = document.data.get("lines"), _entries(document.data[section])
    known = str(written.get(section, "")).split() if isinstance(written, dict) else []
    found = [_short_digest(entry) for entry in entries.items()]
    edited = [key for key, digest in zip(entries, found, strict=True) if digest not in known] if known else []
    for key in edited:
        yield Problem(f"`{key}` was edited", document.place((section, key)))
    if not edited:
        gone = len({*known} - {*found})
        message = f"`{section}` has lost {gone} of its lines" if gone else f"`{section}` was edited"
        yield Problem(message, document.place((section,)))


def _entries(section: object) -> dict[str | int, object]:
    """The lines of a section by key, or by place."""
    if isinstance(section, Mapping):
        return {str(key): value for key, value in section.items()}
    return dict(enumerate(section)) if isinstance(section, list) else {}


def _short_digest(entry: tuple[str | int, object]) -> str:
    return _digest(list(entry))[:_SHORT]


def drift(document: Document, section: str, then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Problem]:
    """Each line of a section that is another one now."""
    for each in differences([then, now]):
        was, found = (value or "nothing" for value in each.values)
        message = f"`{each.key}` is `{was}` in the lock, and `{found}` now"
        yield Problem(message, document.place((section, each.key)))


def _plain(lock: Lock) -> dict[str, object]:
    found: dict[str, object] = json.loads(json.dumps(asdict(lock)))  # each value a copy: YAML has no anchors here
    return found


def _digest(section: object) -> str:
    return hashlib.sha256(json.dumps(section, sort_keys=True).encode()).hexdigest()
