"""Make a folder unreadable, also for root, by dropping two capabilities."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Constants of linux/capability.h.
_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2


@contextmanager
def unreadable(folder: Path) -> Iterator[None]:
    """Make `folder` unreadable for all processes and this thread for the length of the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)  # 0: this thread
    capabilities = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the same for capabilities above 31
    assert libc.capget(header, capabilities) == 0
    without = (ctypes.c_uint32 * 6)(*capabilities)
    without[0] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
    mode = folder.stat().st_mode
    folder.chmod(0)
    assert libc.capset(header, without) == 0
    try:
        yield
    finally:
        assert libc.capset(header, capabilities) == 0
        folder.chmod(mode)
