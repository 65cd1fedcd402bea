"""A checkpoint on a far machine, as far as a patch of its config reads it: config, index, and headers of shards."""

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from orchestrator.checkpoints.config import CONFIG
from orchestrator.checkpoints.integrity import INDEX
from orchestrator.checkpoints.overlay import telling_shards
from orchestrator.core.errors import CheckpointError, CheckpointNotFoundError
from orchestrator.core.files import write_cache
from orchestrator.core.safe_paths import CheckpointFile, FileName, RelativePath, UnsafeValueError, join
from orchestrator.core.subprocesses import CompletedProgram

Ask: TypeAlias = Callable[[Sequence[str]], CompletedProgram]  # runs a program on that machine

# One line a file, empty for one that is missing. Paths are absolute, or relative to the tool's home over there.
_ENTER: Final = 'cd "${DEPLOY_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/deploy}" && cd "$1" && shift || exit 3\n'
_WHOLE: Final = _ENTER + 'for f; do [ ! -f "$f" ] || base64 -w0 "$f"; echo; done; ls | grep "[.]safetensors$" || :'
# A header is behind its length in 8 bytes. One of more than 9 digits is none; what it is then is told here.
_HEADERS: Final = (
    _ENTER + 'for f; do n=$(od -An -tu8 -N8 "$f" | tr -d " "); [ "${#n}" -le 9 ] || n=0;'
    ' head -c "$((n + 8))" "$f" | base64 -w0; echo; done'
)


def copy_headers(ask: Ask, place: str, folder: Path) -> Path:
    """Copy config, index and the headers of the shards that tell how it is stored from `place` into `folder`.

    Raises NoWeightsError where there is no checkpoint, WeightsError for one that cannot be read.
    """
    config, index, *listed = _lines(ask, _WHOLE, place, (CONFIG, INDEX))
    shards = _names(listed, place)
    if not config:
        raise CheckpointNotFoundError(
            "there is no checkpoint on that machine", where=place, hint="`deploy stage PROFILE` stages it"
        )
    for name, line in ((CONFIG, config), (INDEX, index)):
        if line:
            _write(folder, name, line, place)
    for name in shards:
        write_cache(folder / name, b"")
    wanted = telling_shards(folder)
    if missing := sorted(set(wanted) - set(shards)):
        raise CheckpointError(
            f"`{missing[0]}` is missing on that machine", where=place, hint="`deploy stage PROFILE` stages it"
        )
    for name, line in zip(wanted, _lines(ask, _HEADERS, place, wanted), strict=True):
        _write(folder, name, line, place)
    return folder


def _names(listed: Sequence[str], place: str) -> list[CheckpointFile]:
    """Parse what `ls` names on the remote host. Raises WeightsError."""
    try:
        return [CheckpointFile(FileName(name)) for name in listed]
    except UnsafeValueError as error:
        raise CheckpointError(
            "the remote host names a file that is not one of a checkpoint", where=place, details=str(error)
        ) from error


def _lines(ask: Ask, script: str, place: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    done = ask(["sh", "-c", script, "sh", place, *names])
    if done.code == 3:
        raise CheckpointNotFoundError(
            "there is no checkpoint on that machine", where=place, hint="`deploy stage PROFILE` stages it"
        )
    if not done.ok:
        message = "the checkpoint on that machine cannot be read"
        raise CheckpointError(message, where=place, details=done.stderr.strip()[-2000:])
    return done.stdout.split("\n")[:-1]


def _write(folder: Path, name: RelativePath, line: str, place: str) -> None:
    try:
        write_cache(join(folder, name), base64.b64decode(line, validate=True))
    except ValueError as error:
        raise CheckpointError(f"`{name}` was not read whole", where=place) from error
