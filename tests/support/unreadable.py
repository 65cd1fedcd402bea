"""Folders that this process cannot list, for root too: it gives up the rights by which root reads everything."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3 in linux/capability.h, and the numbers of two capabilities there
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2


@contextmanager
def unreadable(folder: Path) -> Iterator[None]:
    """Let nobody list `folder` for the length of a block, this thread included."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)  # of this thread
    held = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then those above 31
    assert libc.capget(header, held) == 0
    without = (ctypes.c_uint32 * 6)(*held)
    without[0] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
    mode = folder.stat().st_mode
    folder.chmod(0)
    assert libc.capset(header, without) == 0
    try:
        yield
    finally:
        assert libc.capset(header, held) == 0
        folder.chmod(mode)
