"""The lockfile: every resolved input of a start, and every unresolved input with the reason. Pure.

Each section has a digest, which reveals edits. The plan is stored by dotted key, without derived values (descriptions,
known issues, smoke questions).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from pydantic import TypeAdapter

from orchestrator.core.catalog import is_valid_name
from orchestrator.core.errors import Problem, ProfileError, truncate_problems
from orchestrator.core.yaml_document import Document, dump_yaml
from orchestrator.plan.diff import differences, flatten
from orchestrator.plan.plan import Plan

FORMAT: Final = 3
COMMIT: Final = "commit"  # key of `Lock.checkpoint` besides its files
LOCK_FILE: Final = "lock.yaml"  # suffix of the file's name
_EXCLUDED: Final = (
    "description",
    "warnings",
    "nondeterministic",
    "wrong_answers",
    "model.questions",
    "model.accept_length",
    "model.architecture",
)
_SECTIONS: Final = ("tool", "profile", "overrides", "checkpoint", "patches", "files", "unknown", "plan")


@dataclass(frozen=True, kw_only=True)
class Lock:
    """A lockfile; digests are sha256 in hex."""

    tool: str  # version of deploy that wrote it
    profile: str  # a name, or a file relative to the lock
    overrides: tuple[str, ...]  # `--set`, including the pins of image and commit
    checkpoint: Mapping[str, str]  # the hub commit; for each file its size and the hub's digest
    patches: Mapping[str, str]  # id -> digest
    files: Mapping[str, str]  # digests of all other input files
    unknown: Mapping[str, str]  # unresolved input -> reason
    plan: Mapping[str, str]  # by dotted key

    @property
    def text(self) -> str:
        """The text of the file."""
        data = json.loads(json.dumps(asdict(self)))  # copies: shared values would become YAML anchors
        digests = {name: _digest(data[name]) for name in _SECTIONS}
        head = "Written by deploy; do not edit. `deploy up --locked` starts exactly this."
        return dump_yaml({"lock": FORMAT, **data, "digests": digests}, head, width=1_000_000)

    @property
    def summary(self) -> dict[str, str]:
        """Everything but the plan by dotted key, for comparisons."""
        sizes = [int(value.split()[0]) for path, value in self.checkpoint.items() if path != COMMIT]
        totals = {"commit": self.checkpoint.get(COMMIT, ""), "files": f"{len(sizes)}, {sum(sizes)} bytes"}
        checkpoint = totals if sizes else {}
        sections = {"patch": self.patches, "file": self.files, "checkpoint": checkpoint, "by": {"deploy": self.tool}}
        return {f"locked.{name}.{key}": value for name, section in sections.items() for key, value in section.items()}


def plan_lines(plan: Plan) -> dict[str, str]:
    """Flatten a plan to dotted keys, as in a lock."""
    lines = flatten(plan.to_dict())
    return {key: value for key, value in sorted(lines.items()) if not key.startswith(_EXCLUDED)}


def parse_lock(document: Document, tool: str) -> Lock:
    """Parse a lock.

    Raises ProfileError with the edited sections and their lines, or if another version of deploy wrote it.
    """
    data, name = document.data, document.name
    if (number := data.get("lock")) != FORMAT:
        message = "not a lockfile"
        if isinstance(number, int) and not isinstance(number, bool):
            message = (
                f"a lockfile of format {number}, of {'an older' if number < FORMAT else 'a newer'} version of deploy"
            )
        raise ProfileError(message, location=document.location(("lock",)), hint="`deploy lock NAME` writes a new one")
    if data.get("tool") != tool:
        raise ProfileError(
            f"the lockfile was written by deploy {data.get('tool')}; this is deploy {tool}",
            location=document.location(("tool",)),
            hint="`deploy lock NAME` writes a new one",
        )
    if edited := truncate_problems(_edited(document)):
        hint = "`deploy lock NAME` writes a new one"
        raise ProfileError(f"`{name}` was edited", problems=edited, hint=hint)
    try:
        return _lock(data)
    except ValueError as error:
        raise ProfileError("not a lockfile", location=name, hint="`deploy lock NAME` writes one") from error


def _lock(data: Mapping[str, object]) -> Lock:
    lock = TypeAdapter(Lock).validate_python({section: data[section] for section in _SECTIONS})
    if invalid := [file for file in lock.files if not is_valid_name(file)]:
        raise ValueError(f"invalid file name `{invalid[0]}`")
    return lock


def _edited(document: Document) -> Iterator[Problem]:
    digests = document.data.get("digests")
    digests = digests if isinstance(digests, dict) else {}
    for name in _SECTIONS:
        if name not in document.data:
            yield Problem(f"`{name}` is missing", document.name)
        elif _digest(document.data[name]) != digests.get(name):
            yield Problem(f"`{name}` was edited", document.location((name,)))
    for name in sorted({*document.data} - {*_SECTIONS, "lock", "digests"}):
        yield Problem(f"`{name}` was added", document.location((name,)))


def drift(document: Document, section: str, locked: Mapping[str, str], current: Mapping[str, str]) -> Iterator[Problem]:
    """Yield each line of a section that has changed since the lock."""
    for difference in differences([locked, current]):
        old, new = (value or "nothing" for value in difference.values)
        message = f"`{difference.key}` is `{old}` in the lock and `{new}` now"
        yield Problem(message, document.location((section, difference.key)))


def _digest(section: object) -> str:
    return hashlib.sha256(json.dumps(section, sort_keys=True).encode()).hexdigest()
