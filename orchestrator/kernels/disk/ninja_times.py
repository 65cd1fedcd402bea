"""The times in ninja's records, which decide whether ninja recompiles an imported kernel.

flashinfer runs ninja at each load (0.6, jit/core.py). ninja recompiles if a header is newer than its record of the
output, for example on a host where the engine was installed later. Therefore kernels and records get the time of
unpacking. Formats: ninja 1.9 to 1.13, src/build_log.cc (versions 5 to 7) and src/deps_log.cc (version 4).
"""

import struct
from typing import Final

LOG: Final = ".ninja_log"
DEPS: Final = ".ninja_deps"
_DEPS_HEADER: Final = b"# ninjadeps\n" + struct.pack("<I", 4)
_IS_DEPS: Final = 1 << 31  # flag in the size of a record: dependencies of an output, not a path


def stamped(name: str, content: bytes, time_ns: int) -> bytes:
    """Return a kernel file's content with `time_ns` in each of ninja's records; other files are unchanged."""
    if name == LOG:
        return b"".join(_log_line(line, time_ns) for line in content.splitlines(keepends=True))
    if name == DEPS and content.startswith(_DEPS_HEADER):
        return _deps(content, time_ns)
    return content


def _log_line(line: bytes, time_ns: int) -> bytes:
    """Return a line with a new time: start, end, time, output and hash, separated by tabs."""
    fields = line.split(b"\t")
    if line.startswith(b"#") or len(fields) != 5:
        return line
    return b"\t".join((*fields[:2], str(time_ns).encode(), *fields[3:]))


def _deps(content: bytes, time_ns: int) -> bytes:
    """Return records with a new time: size, output, low and high half of the time, inputs."""
    edited, at = bytearray(content), len(_DEPS_HEADER)
    while at + 4 <= len(edited):
        (size,) = struct.unpack_from("<I", edited, at)
        if size & _IS_DEPS and at + 16 <= len(edited):
            struct.pack_into("<Q", edited, at + 8, time_ns)
        at += 4 + (size & ~_IS_DEPS)
    return bytes(edited)
